//! Every policy on virtual time.
