//! `install`: leaves a copy of the running binary where the Postgres container finds it.

use std::{fs, io, os::unix::fs::PermissionsExt, path::Path};

/// The copy could not be made.
#[derive(Debug, thiserror::Error)]
#[error("copying the operator's binary to {to}: {source}")]
pub struct InstallError {
    to: String,
    #[source]
    source: io::Error,
}

/// Copies the running binary to `<dir>/postgres-operator`, executable for everybody, replacing one that is there in a
/// single step: a container that starts meanwhile sees the old one or the new one, never a part.
///
/// # Errors
/// The directory can't be written.
pub fn install(dir: &Path) -> Result<(), InstallError> {
    let to = dir.join("postgres-operator");
    copy(&to).map_err(|source| InstallError { to: to.display().to_string(), source })
}

fn copy(to: &Path) -> io::Result<()> {
    let partial = to.with_extension("partial");
    fs::copy(std::env::current_exe()?, &partial)?;
    fs::set_permissions(&partial, fs::Permissions::from_mode(0o755))?;
    fs::File::open(&partial)?.sync_all()?;
    fs::rename(&partial, to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_what_is_there() {
        let dir = std::env::temp_dir().join(format!("install-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("postgres-operator"), "old").unwrap();
        install(&dir).unwrap();
        let meta = fs::metadata(dir.join("postgres-operator")).unwrap();
        assert_eq!(meta.permissions().mode() & 0o777, 0o755);
        assert_eq!(meta.len(), fs::metadata(std::env::current_exe().unwrap()).unwrap().len());
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn says_where_it_could_not_write() {
        let error = install(Path::new("/nowhere/at/all")).unwrap_err();
        assert!(error.to_string().contains("/nowhere/at/all/postgres-operator"));
    }
}
