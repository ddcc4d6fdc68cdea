//! `bundle write` writes what is generated from the code, `bundle check` compares it.

use std::{fs, path::Path};

use anyhow::{Context, bail};
use postgres_operator::bundle;

fn main() -> anyhow::Result<()> {
    let files = bundle::files()?;
    match std::env::args().nth(1).as_deref() {
        Some("write") => {
            for (path, content) in &files {
                if let Some(folder) = Path::new(path).parent() {
                    fs::create_dir_all(folder).with_context(|| format!("making the folder of {path}"))?;
                }
                fs::write(path, content)
                    .with_context(|| format!("writing {path}; run from the top of the repository"))?;
            }
            Ok(())
        }
        Some("check") => {
            let stale: Vec<_> = files
                .iter()
                .filter(|(path, content)| fs::read_to_string(path).ok().as_ref() != Some(content))
                .collect();
            if !stale.is_empty() {
                let names: Vec<_> = stale.iter().map(|(path, _)| path.as_str()).collect();
                bail!("these files differ from the code, run make generate: {}", names.join(", "));
            }
            Ok(())
        }
        _ => bail!("usage: bundle write|check"),
    }
}
