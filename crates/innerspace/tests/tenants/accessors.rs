//! Accessors: what they cost, who pays, and how long dropping many of them takes.
