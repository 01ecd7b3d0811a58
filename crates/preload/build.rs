//! Linker options of `libtidewall.so`.

fn main() {
    // The library's own calls must not resolve to a function of that name in the program,
    // such as Erlang's `sigaction`, which calls the next one.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
    println!("cargo:rerun-if-changed=build.rs");
}
