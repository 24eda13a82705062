//! The `sluice` command.

fn main() -> std::process::ExitCode {
    sluice_cli::main()
}
