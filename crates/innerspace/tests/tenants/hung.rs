//! A store, device, waker or hook that hangs or panics stops its own tenant alone.
