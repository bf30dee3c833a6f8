//! The steps between a command line and its command, each named where it fails.

use std::fmt;
use std::io;
use std::path::Path;

/// A step that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {step}")]
pub(super) struct StepError {
    step: String,
    #[source]
    pub(super) why: io::Error,
}

/// Names the step in which an error came.
pub(super) trait At<T> {
    fn at(self, step: impl Into<StepName>) -> Result<T, StepError>;
}

/// What was being done, as an infinitive, and to what.
pub(super) struct StepName(String);

impl From<&str> for StepName {
    fn from(step: &str) -> Self {
        Self(step.to_owned())
    }
}

impl From<(&str, &Path)> for StepName {
    fn from((step, path): (&str, &Path)) -> Self {
        Self(format!("{step} {}", path.display()))
    }
}

impl<T, E: Into<io::Error>> At<T> for Result<T, E> {
    fn at(self, step: impl Into<StepName>) -> Result<T, StepError> {
        self.map_err(|why| StepError { step: step.into().0, why: why.into() })
    }
}

impl fmt::Debug for StepName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
