//! The `holdfast` program. Everything is in the library, so that it can be tested and embedded.

/// A third of a loaded node's time went into the system's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    holdfast_node::cli::main()
}
