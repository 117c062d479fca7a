//! What a `tracing` subscriber hears.
//!
//! The one test has a process of its own: `tracing` asks one subscriber once whether it wants an
//! event, in the thread that comes to it first.

#![cfg(all(feature = "tracing_0_1", feature = "test-util"))]

use innerspace::store::faulty::{Failure, Fault, OperationKind, Rule};
use innerspace::store::{FaultyStore, MemoryStore};
use innerspace::{KIB, MIB, Memory, Threads, dax::DaxDevice, file::FileAccess};

/// Keeps the text of each event of the library.
#[derive(Clone, Default)]
struct Listener(std::sync::Arc<std::sync::Mutex<Vec<String>>>);

impl tracing::Subscriber for Listener {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == "innerspace"
    }

    fn event(&self, event: &tracing::Event<'_>) {
        struct Text(String);
        impl tracing::field::Visit for Text {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0 += &format!(" {field}={value:?}");
            }
        }
        let mut text = Text(event.metadata().level().to_string());
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn a_subscriber_is_told_what_comes_and_goes_and_what_is_lost() {
    let listener = Listener::default();
    tracing::subscriber::with_default(listener.clone(), || {
        let memory = Memory::builder(MIB).threads(Threads::None).build().unwrap();
        let group = memory.create_group("tenant", 512 * KIB).unwrap();
        let store = FaultyStore::new(MemoryStore::with_len(100));
        store.add(
            Rule::new(Fault::Fail(Failure::NoSpace))
                .on(&[OperationKind::Write])
                .forever(),
        );
        let options = memory
            .file_options()
            .access(FileAccess::ReadWrite)
            .group(&group);
        let file = options.name("data.bin").open_store(store).unwrap();
        file.write_at(b"lost", 0).unwrap();
        drop(file);
        let device = DaxDevice::memory(64 * KIB).unwrap();
        drop(memory.create_dax_on(&device, "direct.bin").unwrap());
        drop(memory);
    });
    let heard = listener.0.lock().unwrap().join("\n");
    for expected in [
        "DEBUG message=memory created limit=1048576",
        "DEBUG message=group created group=root/tenant",
        "DEBUG message=file opened file=\"data.bin\" len=100 block_size=4096 group=root/tenant",
        "WARN message=write lost error=data.bin: write of 100 bytes at 0 failed: no storage space",
        "DEBUG message=file closed file=data.bin",
        "DEBUG message=direct file opened file=\"direct.bin\" len=0 group=root",
        "DEBUG message=direct file closed file=direct.bin",
    ] {
        assert!(heard.contains(expected), "{expected}\n{heard}");
    }
}
