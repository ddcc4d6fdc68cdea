//! What the scripts hand to the tests: names of images and paths.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The folder everything built outside the checkout lies in; the same rule as in `hack/lib.sh`.
///
/// # Errors
/// Neither `XDG_CACHE_HOME` nor `HOME` is set.
pub fn cache() -> Result<PathBuf> {
    let base = match std::env::var_os("XDG_CACHE_HOME") {
        Some(folder) if !folder.is_empty() => PathBuf::from(folder),
        _ => PathBuf::from(std::env::var_os("HOME").context("HOME is not set")?).join(".cache"),
    };
    Ok(base.join("postgres-operator"))
}

/// Root of the repository.
#[must_use]
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_path_buf).unwrap_or_default()
}

/// Where cargo builds.
#[must_use]
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| repository().join("target"), PathBuf::from)
}

/// The value of a variable of `images.env`; the environment goes first.
///
/// # Errors
/// It is in neither; the message says which command makes it.
pub fn image(variable: &str) -> Result<String> {
    if let Ok(value) = std::env::var(variable) {
        return Ok(value);
    }
    let file = cache()?.join("images.env");
    let text = std::fs::read_to_string(&file)
        .with_context(|| format!("{variable} is not set and {} can't be read: run `make images`", file.display()))?;
    text.lines()
        .find_map(|line| line.strip_prefix(variable)?.strip_prefix('='))
        .map(str::to_owned)
        .with_context(|| format!("{variable} is neither set nor in {}: run `make images`", file.display()))
}

/// Splits `name:tag`; a registry's port is not a tag.
#[must_use]
pub fn name_and_tag(image: &str) -> (&str, &str) {
    match image.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (name, tag),
        _ => (image, "latest"),
    }
}

/// All deadlines are multiplied by `E2E_PATIENCE`, for machines slower than two cores.
#[must_use]
pub fn patience() -> f64 {
    std::env::var("E2E_PATIENCE").ok().and_then(|text| text.parse().ok()).unwrap_or(1.0)
}
