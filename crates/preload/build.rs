//! How `libtidewall.so` is linked.

fn main() {
    // What the library calls of its own is not a function of the program's with that name,
    // as Erlang's `sigaction` is, which calls the next one's.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
    println!("cargo:rerun-if-changed=build.rs");
}
