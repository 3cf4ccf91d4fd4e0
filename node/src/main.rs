//! The `holdfast` program. Everything is in the library, so that it can be tested and embedded.

fn main() -> std::process::ExitCode {
    holdfast_node::cli::main()
}
