//! Claims that a test notices a mutant.

use anyhow::{Context, Result, bail, ensure};

use crate::harness::{Mode, Target};

/// One claim: this test notices the mutant.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Claim {
    pub(super) target: Target,
    pub(super) test: String,
    pub(super) may_hang: bool,
    pub(super) may_abort: bool,
}

impl Claim {
    /// Reads `MODE [TARGET]: NAME [, may hang] [, may abort]`.
    pub(super) fn parse(text: &str, package: &str) -> Result<Claim> {
        let (tool, rest) = text
            .split_once(": ")
            .with_context(|| format!("\"{text}\" has no colon"))?;
        let mut words = tool.split_whitespace();
        let mode = words
            .next()
            .and_then(Mode::named)
            .with_context(|| format!("\"{tool}\" is none of test, loom, shuttle"))?;
        let integration = words.next().map(str::to_owned);
        ensure!(words.next().is_none(), "\"{tool}\" has a word too many");
        let mut parts = rest.split(',').map(str::trim);
        let test = parts
            .next()
            .filter(|name| !name.is_empty())
            .context("no test is named")?
            .to_owned();
        let mut claim = Claim {
            target: Target {
                mode,
                package: package.to_owned(),
                integration,
            },
            test,
            may_hang: false,
            may_abort: false,
        };
        for mark in parts {
            match mark {
                "may hang" => claim.may_hang = true,
                "may abort" => claim.may_abort = true,
                other => bail!("\"{other}\" is neither \"may hang\" nor \"may abort\""),
            }
        }
        Ok(claim)
    }

    /// Returns the tests whose path ends in the claim's name, or, if there are none, contains it.
    pub(super) fn matching(&self, tests: &[String]) -> Vec<String> {
        let suffix = format!("::{}", self.test);
        let whole = |test: &&String| **test == self.test || test.ends_with(&suffix);
        let mut found: Vec<String> = tests.iter().filter(whole).cloned().collect();
        if found.is_empty() {
            let part = |test: &&String| test.contains(&self.test);
            found = tests.iter().filter(part).cloned().collect();
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(text: &str) -> Claim {
        Claim::parse(text, "innerspace").unwrap()
    }

    #[test]
    fn a_claim_names_mode_target_and_test() {
        let found = claim("test model: reuse, may abort");
        assert_eq!(found.target.mode, Mode::Test);
        assert_eq!(found.target.integration.as_deref(), Some("model"));
        assert_eq!(found.test, "reuse");
        assert!(found.may_abort && !found.may_hang);
    }

    #[test]
    fn a_malformed_claim_is_an_error() {
        for text in [
            "miri: x",
            "loom x",
            "loom: ",
            "loom a b: x",
            "loom: x, may pass",
        ] {
            assert!(Claim::parse(text, "p").is_err(), "{text}");
        }
    }

    #[test]
    fn a_test_is_named_by_the_end_of_its_path_or_a_part() {
        let tests = ["a::reuse", "a::reuse_twice", "b::other"].map(str::to_owned);
        assert_eq!(claim("test: reuse").matching(&tests), ["a::reuse"]);
        assert_eq!(
            claim("test: a::reu").matching(&tests),
            ["a::reuse", "a::reuse_twice"]
        );
        assert!(claim("test: nothing").matching(&tests).is_empty());
    }
}
