//! Numbers that all groups share have a part for each group, and handles lead downwards.
