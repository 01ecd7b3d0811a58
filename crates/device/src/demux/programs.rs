//! The driver programs as `build.rs` compiled them: ELF objects for a loader.

/// `bpf/demux.bpf.c`: the demultiplexer.
pub static DEMUX: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/demux.bpf.o"));
/// `bpf/pass.bpf.c`: passes every frame.
pub static PASS: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/pass.bpf.o"));
/// `bpf/syn_limit.bpf.c`: limits the SYNs to each port.
pub static SYN_LIMIT: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/syn_limit.bpf.o"));

/// `bpf/load.bpf.c`: the load generator's program in the kernel.
pub static LOAD: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/load.bpf.o"));
/// `bpf/adaptor.bpf.c`: stands in for a card that steers.
pub static ADAPTOR: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/adaptor.bpf.o"));
