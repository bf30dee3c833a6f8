//! The program `tidegate`: hands its arguments to the verbs.

fn main() -> std::process::ExitCode {
    tidegate::cli::run()
}
