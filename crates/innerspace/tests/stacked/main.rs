//! Files whose stores are made of other files of the same memory.
#![cfg(not(miri))]

mod alone;
mod notes;

pub(crate) const PAGE: u64 = innerspace::PAGE_SIZE as u64;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name}={text} is no number")),
    )
}
