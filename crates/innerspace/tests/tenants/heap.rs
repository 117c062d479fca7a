//! Everything a tenant makes in numbers is charged at its real size, or bounded by a stated number.
