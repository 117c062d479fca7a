//! The figures as text for people and as JSON for programs, with the machine on which they were
//! measured.
//!
//! ```text
//! {"machine": {}, "tables": [{"name": "", "rows": [{"name": "", "unit": "ns",
//! "contenders": {"innerspace": {"median": 0, "min": 0, "max": 0}},
//! "ratio": 0, "budget": 0, "met": true}]}]}
//! ```
//! Here `ratio` is the subject's median divided by the baseline's, `unit` is `ns`, `bytes` or `%`,
//! and `budget_of` says whether `budget` limits the ratio or the subject's median itself (from
//! above; "5 times as fast" is a ratio of 0.2). Fields that do not apply are null.

use std::fmt;
use std::fs;
use std::process::Command;

use serde::{Serialize, Serializer, ser::SerializeMap, ser::SerializeStruct};

use crate::harness::{Budget, Figures, Measured};

/// The results of one run.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    machine: Machine,
    tables: Vec<Table>,
}

/// Rows that belong together.
#[derive(Debug, Serialize)]
pub(crate) struct Table {
    pub(crate) name: String,
    pub(crate) rows: Vec<Measured>,
}

/// The machine that was measured; "unknown" if the system does not report it.
#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    cpu: String,
    cores: usize,
    kernel: String,
    memory_bytes: u64,
    rustc: String,
}

impl Report {
    pub(crate) fn new(tables: Vec<Table>) -> Report {
        Report {
            machine: Machine::this(),
            tables,
        }
    }

    /// Whether no table has a row.
    pub(crate) fn is_empty(&self) -> bool {
        self.tables.iter().all(|table| table.rows.is_empty())
    }
}

impl Machine {
    pub(crate) fn this() -> Machine {
        let unknown = || "unknown".to_owned();
        Machine {
            cpu: field("/proc/cpuinfo", "model name").unwrap_or_else(unknown),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease")
                .map_or_else(|_| unknown(), |release| release.trim().to_owned()),
            memory_bytes: field("/proc/meminfo", "MemTotal")
                .and_then(|total| total.strip_suffix(" kB")?.trim().parse::<u64>().ok())
                .map_or(0, |kib| kib * 1024),
            rustc: rustc().unwrap_or_else(unknown),
        }
    }
}

/// Returns the value of the first `name : value` line of a file in /proc.
fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    lines
        .into_iter()
        .find(|(key, _)| key.trim() == name)
        .map(|(_, value)| value.trim().to_owned())
}

fn rustc() -> Option<String> {
    let output = Command::new("rustc").arg("--version").output().ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

impl Serialize for Figures {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut figures = serializer.serialize_struct("Figures", 3)?;
        figures.serialize_field("median", &self.median)?;
        figures.serialize_field("min", &self.minimum)?;
        figures.serialize_field("max", &self.maximum)?;
        figures.end()
    }
}

/// Contenders as a map in the order of the row.
struct Contenders<'a>(&'a [(String, Figures)]);

impl Serialize for Contenders<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, figures) in self.0 {
            map.serialize_entry(name, figures)?;
        }
        map.end()
    }
}

impl Serialize for Measured {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (budget, budget_of) = match self.budget {
            Budget::Ratio(most) => (Some(most), Some("ratio")),
            Budget::Within(most) => (Some(1.0 + most), Some("ratio")),
            Budget::Faster(times) => (Some(1.0 / times), Some("ratio")),
            Budget::Absolute(most) => (Some(most), Some("median")),
            Budget::None => (None, None),
        };
        let mut row = serializer.serialize_struct("Row", 9)?;
        row.serialize_field("name", &self.name)?;
        row.serialize_field("unit", self.unit.name())?;
        row.serialize_field("contenders", &Contenders(&self.contenders))?;
        row.serialize_field("subject", self.subject)?;
        row.serialize_field("baseline", self.baseline)?;
        row.serialize_field("ratio", &self.ratio())?;
        row.serialize_field("budget", &budget)?;
        row.serialize_field("budget_of", &budget_of)?;
        row.serialize_field("met", &self.met())?;
        row.end()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine {
            cpu,
            cores,
            kernel,
            memory_bytes,
            rustc,
        } = &self.machine;
        let memory = *memory_bytes as f64 / (1 << 30) as f64;
        writeln!(
            f,
            "{cpu}, {cores} cores, {memory:.1} GiB, Linux {kernel}, {rustc}"
        )?;
        writeln!(
            f,
            "CPU time of one thread unless said otherwise; contenders interleaved; median (least to most)"
        )?;
        for table in &self.tables {
            writeln!(f, "\n{}", table.name)?;
            for row in &table.rows {
                write_row(f, row)?;
            }
        }
        Ok(())
    }
}

fn write_row(f: &mut fmt::Formatter<'_>, row: &Measured) -> fmt::Result {
    write!(f, "\n  {}", row.name)?;
    let verdict = |met| if met { "met" } else { "MISSED" };
    let asked = match row.budget {
        Budget::Ratio(most) => format!("at most {most:.1} x {}", row.baseline),
        Budget::Within(most) => format!("within {:.0} % of {}", most * 100.0, row.baseline),
        Budget::Faster(times) => format!("at least {times:.1} times as fast as {}", row.baseline),
        Budget::Absolute(most) => format!("at most {most:.1} {}", row.unit.name()),
        Budget::None => String::new(),
    };
    match row.met() {
        Some(met) => writeln!(f, ": {} {asked}: {}", row.subject, verdict(met))?,
        None => writeln!(f)?,
    }
    let baseline = row.figures(row.baseline);
    for (
        name,
        Figures {
            median,
            minimum,
            maximum,
        },
    ) in &row.contenders
    {
        let unit = row.unit.name();
        write!(
            f,
            "    {name:<24} {median:>9.2} {unit}  ({minimum:.2} to {maximum:.2})"
        )?;
        match baseline {
            Some(baseline) if *median < baseline.median / 10.0 => {
                writeln!(f, "  {:.4} x", median / baseline.median)?;
            }
            Some(baseline) => writeln!(f, "  {:.2} x", median / baseline.median)?,
            None => writeln!(f)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::tests::{row, scripted};
    use crate::harness::{Contender, Plan};

    fn report(budget: Budget, contenders: Vec<Contender<'static>>) -> Report {
        let measured = row(budget, contenders).measure(Plan::full(3)).unwrap();
        Report::new(vec![Table {
            name: "table".into(),
            rows: vec![measured],
        }])
    }

    #[test]
    fn json_has_the_documented_shape_in_the_order_of_the_row() {
        let contenders = vec![
            scripted("raw", &[0, 110, 100, 90]),
            scripted("ours", &[0, 210, 200, 260]),
        ];
        let json = serde_json::to_string(&report(Budget::Ratio(2.0), contenders)).unwrap();
        let tables = json.split_once("\"tables\":").unwrap().1;
        assert_eq!(
            tables,
            "[{\"name\":\"table\",\"rows\":[{\"name\":\"row\",\"unit\":\"ns\",\"contenders\":{\
             \"raw\":{\"median\":10.0,\"min\":9.0,\"max\":11.0},\
             \"ours\":{\"median\":21.0,\"min\":20.0,\"max\":26.0}},\
             \"subject\":\"ours\",\"baseline\":\"raw\",\"ratio\":2.1,\"budget\":2.0,\
             \"budget_of\":\"ratio\",\"met\":false}]}]}"
        );
        let machine: serde_json::Value = serde_json::from_str(&json).unwrap();
        for key in ["cpu", "cores", "kernel", "memory_bytes", "rustc"] {
            assert!(!machine["machine"][key].is_null(), "{key}");
        }
    }

    #[test]
    fn text_names_the_budget_and_the_verdict() {
        let contenders = || {
            vec![
                scripted("raw", &[0, 100, 100, 100]),
                scripted("ours", &[0, 150, 150, 150]),
            ]
        };
        let met = report(Budget::Ratio(2.0), contenders()).to_string();
        assert!(met.contains("row: ours at most 2.0 x raw: met\n"), "{met}");
        assert!(
            met.contains("15.00 ns  (15.00 to 15.00)  1.50 x\n"),
            "{met}"
        );
        let slower = report(Budget::Faster(5.0), contenders()).to_string();
        assert!(
            slower.contains("row: ours at least 5.0 times as fast as raw: MISSED\n"),
            "{slower}"
        );
        let missed = report(Budget::Absolute(14.0), contenders()).to_string();
        assert!(
            missed.contains("row: ours at most 14.0 ns: MISSED\n"),
            "{missed}"
        );
    }

    #[test]
    fn what_does_not_apply_is_null() {
        let alone = vec![scripted("raw", &[0, 100, 100, 100])];
        let json = serde_json::to_value(report(Budget::None, alone)).unwrap();
        let row = &json["tables"][0]["rows"][0];
        assert!(row["ratio"].is_null() && row["budget"].is_null() && row["met"].is_null());
    }
}
