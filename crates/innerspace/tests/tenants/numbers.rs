//! Numbers that all share have a share for each group, and handles lead downwards.
