//! A session, a view or a pin of A delays B by a stated bound.
