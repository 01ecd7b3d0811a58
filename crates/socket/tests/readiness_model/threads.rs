//! What happens at the same time.
