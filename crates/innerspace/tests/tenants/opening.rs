//! A file that both open belongs to the group that was said to pay.
