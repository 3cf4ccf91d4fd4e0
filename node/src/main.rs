//! The `holdfast` program. Everything is in the library, so that it can be tested and embedded.

/// A third of a loaded node's time went into the system's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    // Of each huge page the allocator uses a little: an idle node took twice the memory with them. Without leave to say so
    // it takes it.
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    holdfast_node::cli::main()
}
