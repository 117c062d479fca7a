//! The texts of errors of groups.

use super::*;

fn full(holders: Holders, reason: LimitReason) -> LimitError {
    LimitError::new(LimitDetails {
        group: "tenant-a".into(),
        id: GroupId(1),
        max: PageCount::floor(64 * MIB),
        usage: PageCount::floor(64 * MIB),
        requested: PageCount(16),
        reason,
        holders,
    })
}

#[test]
fn the_error_names_the_group_and_what_holds_it() {
    let viewed = Holders {
        views: 16_358,
        viewed: PageCount(16_358),
        tables: PageCount(26),
        ..Holders::default()
    };
    assert_eq!(
        full(viewed, LimitReason::NothingEvictable).to_string(),
        "group tenant-a is full: 64.0 of 64.0 MiB, of which 63.9 pinned by 16,358 views; \
         nothing can be evicted. Drop views or raise the limit"
    );
    let mixed = Holders {
        views: 1,
        viewed: PageCount(4096),
        anonymous: PageCount(8192),
        dirty: PageCount(1024),
        ..Holders::default()
    };
    assert_eq!(
        full(mixed, LimitReason::NothingEvictable).to_string(),
        "group tenant-a is full: 64.0 of 64.0 MiB, of which 16.0 pinned by 1 view, 4.0 dirty, \
         32.0 anonymous; nothing can be evicted. Unmap anonymous memory or raise the limit"
    );
    assert_eq!(mixed.counted(), PageCount(4096 + 8192 + 1024));
    let failing = Holders {
        failing: PageCount(12_288),
        dirty: PageCount(4096),
        ..Holders::default()
    };
    assert_eq!(
        full(failing, LimitReason::NothingEvictable).to_string(),
        "group tenant-a is full: 64.0 of 64.0 MiB, of which 48.0 dirty and failing to be written, 16.0 \
         dirty; nothing can be evicted. See the files' write errors: sync again or discard them, or \
         raise the limit"
    );
}

#[test]
fn a_request_for_more_than_there_is_says_how_much_it_was() {
    let LimitError(mut details) = full(Holders::default(), LimitReason::NothingEvictable);
    details.usage = PageCount(1);
    details.requested = PageCount::floor(128 * MIB);
    assert_eq!(
        LimitError(details).to_string(),
        "group tenant-a is too full for 128.0 MiB more: 0.0 of 64.0 MiB; nothing can be evicted. \
         Raise the limit"
    );
}

#[test]
fn a_little_room_is_not_rounded_away() {
    let text = |max: u64, room: u64| {
        let LimitError(mut details) = full(Holders::default(), LimitReason::NothingEvictable);
        details.max = PageCount::floor(max);
        details.usage = PageCount(details.max.0 - room);
        details.requested = PageCount(4);
        let text = LimitError(details).to_string();
        let text = text.strip_prefix("group tenant-a is too full for 16.0 KiB more: ");
        text.and_then(|text| text.split(';').next())
            .map(str::to_string)
    };
    let expect = |max, room, expected: &str| {
        assert_eq!(text(max, room).as_deref(), Some(expected));
    };
    expect(2 * MIB, 3, "1.99 of 2.00 MiB");
    expect(2 * MIB, 300, "0.8 of 2.0 MiB");
    expect(64 * KIB, 1, "60.0 of 64.0 KiB");
    expect(GIB, 1, "0.999996 of 1.000000 GiB");
    expect(1 << 40, 3, "1023.99999 of 1024.00000 GiB");
}

#[test]
fn a_row_that_would_read_nothing_is_left_out() {
    let error = LimitError::new(LimitDetails {
        group: "small".into(),
        id: GroupId(1),
        max: PageCount(435),
        usage: PageCount(435),
        requested: PageCount(1),
        reason: LimitReason::NothingEvictable,
        holders: Holders {
            dirty: PageCount(400),
            tables: PageCount(6),
            pinned: PageCount(14),
            ..Holders::default()
        },
    });
    assert_eq!(
        error.to_string(),
        "group small is full: 1.7 of 1.7 MiB, of which 1.6 dirty, 0.1 locked or in use; nothing \
         can be evicted. Sync or discard the dirty files, or raise the limit"
    );
}

#[test]
fn other_reasons_say_so() {
    assert_eq!(
        full(Holders::default(), LimitReason::WouldBlock).to_string(),
        "group tenant-a is full: 64.0 of 64.0 MiB; the request may not wait"
    );
    assert_eq!(
        full(Holders::default(), LimitReason::Fragmented).to_string(),
        "group tenant-a has no 64.0 KiB in a row: 64.0 of 64.0 MiB; pages in use lie everywhere \
         between the free ones. Drop views, pins or spaces, or make the memory larger"
    );
    let huge = Holders {
        partial: true,
        dirty: PageCount(16_000),
        ..Holders::default()
    };
    assert_eq!(
        full(huge, LimitReason::NothingEvictable).to_string(),
        "group tenant-a is full: 64.0 of 64.0 MiB, of which at least 62.5 dirty; nothing can be \
         evicted. Sync or discard the dirty files, or raise the limit"
    );
}

#[test]
fn group_errors_are_one_clear_line() {
    let small = GroupError::TooSmall {
        group: "a".into(),
        max: 8 * KIB,
        minimum: minimum_pages(3).bytes(),
        accessors: 3,
    };
    assert_eq!(
        small.to_string(),
        "group a: limit 8.0 KiB is below the minimum of 56.0 KiB (8 pages and 2 for each of 3 accessor(s))"
    );
    assert_eq!(minimum_pages(0), minimum_pages(1));
    assert_eq!(
        small.for_limit(56 * KIB - 1).to_string(),
        "group a: limit 57,343 bytes is below the minimum of 56.0 KiB (8 pages and 2 for each of 3 accessor(s))"
    );
}
