//! (layer to come)
