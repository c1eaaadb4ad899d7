//! Compiles the folder `jobs/papers` in: the studies of `whimbrel paper`, their jobs and files.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let crate_folder = PathBuf::from(env::var("CARGO_MANIFEST_DIR").map_err(io::Error::other)?);
    let root = crate_folder.join("../../jobs/papers").canonicalize()?;
    println!("cargo::rerun-if-changed={}", root.display());
    let mut files = Vec::new();
    collect(&root, &mut files)?;
    files.sort();
    let mut text = String::from("const FILES: &[(&str, &str)] = &[\n");
    for file in &files {
        let name = file.strip_prefix(&root).map_err(io::Error::other)?;
        let name = name.components().map(|part| part.as_os_str().to_string_lossy());
        let name = name.collect::<Vec<_>>().join("/");
        text += &format!("    ({name:?}, include_str!({:?})),\n", file.display().to_string());
    }
    text += "];\nconst STUDIES: &[&str] = &[\n";
    let names = files.iter().filter_map(|file| study(file.strip_prefix(&root).ok()?));
    names.for_each(|name| text += &format!("    {name:?},\n"));
    text += "];\n";
    let out = PathBuf::from(env::var("OUT_DIR").map_err(io::Error::other)?);
    fs::write(out.join("papers.rs"), text)
}

/// The name of a study, `PAPER-FILE`; `None` for other files.
fn study(file: &Path) -> Option<String> {
    let (paper, name) = (file.parent()?.to_str()?, file.file_stem()?.to_str()?);
    let is_study = !paper.contains(['/', '\\']) && name != "missing";
    is_study.then(|| format!("{paper}-{name}"))
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}
