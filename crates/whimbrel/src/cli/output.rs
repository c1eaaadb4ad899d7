//! Output files of commands. Existing files are replaced on request only.

use super::messages;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use whimbrel_core::Error;
use whimbrel_families::failure::{Failure, Result};
use whimbrel_runs::owner;

/// Limit of followed links, as on Linux.
const LINKS_MAX: usize = 40;

/// The destination of a command's output.
pub struct Output {
    shown: String,
    target: Target,
}

enum Target {
    /// Standard output: `-`, or another name of it.
    Standard,
    /// A device, a pipe or an open file: written to, never replaced.
    Through(PathBuf),
    /// A file with links resolved, replaced only with `--force`.
    File { path: PathBuf, force: bool },
}

impl Output {
    /// Checks `path` before the work: an existing file needs `force`, and neither one of `inputs`
    /// nor a file of a run is ever replaced.
    pub fn check<'a>(
        path: &Path,
        force: bool,
        inputs: impl IntoIterator<Item = &'a Path>,
    ) -> Result<Self> {
        if path == Path::new("-") {
            return Ok(Self { shown: "standard output".into(), target: Target::Standard });
        }
        let shown = path.display().to_string();
        let refused = |why: &str| Error::config(format!("--out {}: {why}", path.display()));
        let file = behind_links(path).map_err(|e| refused(&e.to_string()))?;
        let there = match fs::metadata(&file) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            other => Some(other.map_err(|e| refused(&e.to_string()))?),
        };
        let target = match there {
            Some(there) if is_standard_output(&there) => Target::Standard,
            Some(there) if there.is_dir() => {
                let error = refused("it is a folder").hint("name a file in it");
                return Err(error.into());
            }
            Some(there) if !there.is_file() || is_descriptor(&file) => Target::Through(file),
            there => {
                if inputs.into_iter().any(|input| is_same_file(input, &file)) {
                    let error = refused("this command reads that file").hint("name another file");
                    return Err(error.into());
                }
                if let Some(run) = owner(&file) {
                    let why = format!("the file is part of the run in {}", run.display());
                    let hint = "name a file elsewhere, or another one in that folder";
                    return Err(refused(&why).hint(hint).into());
                }
                if there.is_some() && !force {
                    let error = refused("the file exists").hint("--force replaces it");
                    return Err(error.into());
                }
                if !folder_of(&file).is_dir() {
                    let why = format!("there is no folder {}", folder_of(&file).display());
                    return Err(refused(&why).into());
                }
                Target::File { path: file, force }
            }
        };
        Ok(Self { shown, target })
    }

    /// The same for a command that prints JSON to standard output if `json` is set.
    pub fn check_beside_json<'a>(
        path: &Path,
        force: bool,
        json: bool,
        inputs: impl IntoIterator<Item = &'a Path>,
    ) -> Result<Self> {
        let output = Self::check(path, force, inputs)?;
        match (&output.target, json) {
            (Target::Standard, true) => {
                Err(Failure::config("--json and --out both ask for standard output"))
            }
            _ => Ok(output),
        }
    }

    /// Its name in messages.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// Whether the output goes to standard output.
    pub fn is_standard(&self) -> bool {
        matches!(self.target, Target::Standard)
    }

    /// Writes text.
    pub fn write(&self, text: &str) -> Result<()> {
        self.write_with(|out| out.write_all(text.as_bytes()).map_err(|e| self.failed(e)))
    }

    /// Writes in pieces; a file appears complete or not at all.
    pub fn write_with<T>(&self, write: impl FnOnce(&mut dyn Write) -> Result<T>) -> Result<T> {
        match &self.target {
            Target::Standard => {
                let mut bytes = Vec::new();
                let made = write(&mut bytes)?;
                messages::bytes(&bytes)?;
                Ok(made)
            }
            Target::Through(path) => {
                let device = OpenOptions::new().write(true).open(path);
                let mut out = BufWriter::new(device.map_err(|e| self.failed(e))?);
                let made = write(&mut out)?;
                out.flush().map_err(|e| self.failed(e))?;
                Ok(made)
            }
            Target::File { path, force } => {
                let beside = Beside::create(path).map_err(|e| self.failed(e))?;
                let mut out = BufWriter::new(&beside.file);
                let made = write(&mut out)?;
                out.flush().map_err(|e| self.failed(e))?;
                drop(out);
                beside.replace(path, *force).map_err(|e| self.failed(e))?;
                Ok(made)
            }
        }
    }

    fn failed(&self, error: io::Error) -> Failure {
        Error::storage(&self.shown, error).into()
    }
}

/// A temporary file beside its target, removed unless it is renamed to it.
struct Beside {
    file: File,
    path: PathBuf,
}

impl Beside {
    fn create(target: &Path) -> io::Result<Self> {
        let name = target.file_name().unwrap_or_default().display().to_string();
        let path = target.with_file_name(format!(".{name}.{}.tmp", std::process::id()));
        Ok(Self { file: File::create_new(&path)?, path })
    }

    fn replace(&self, target: &Path, force: bool) -> io::Result<()> {
        match fs::metadata(target) {
            Ok(_) if !force => return Err(io::ErrorKind::AlreadyExists.into()),
            Ok(old) => self.file.set_permissions(old.permissions())?,
            Err(_) => {}
        }
        self.file.sync_all()?;
        fs::rename(&self.path, target)
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        // Already renamed after success.
        let _ = fs::remove_file(&self.path);
    }
}

/// The path that opening `path` for writing reaches, existing or not.
fn behind_links(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_path_buf();
    for _ in 0..LINKS_MAX {
        match fs::read_link(&path) {
            Ok(_) if is_descriptor(&path) => return Ok(path),
            Ok(link) => path = folder_of(&path).join(link),
            Err(_) => return Ok(path),
        }
    }
    Err(io::Error::other("too many symbolic links"))
}

/// Whether a path names an open file descriptor (`/dev/fd/63` of a shell's `>(command)`).
fn is_descriptor(path: &Path) -> bool {
    folder_of(path).canonicalize().is_ok_and(|folder| folder.starts_with("/proc"))
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Whether both paths lead to the same file.
fn is_same_file(one: &Path, other: &Path) -> bool {
    match (fs::metadata(one), fs::metadata(other)) {
        (Ok(a), Ok(b)) => is_same(&a, &b) || one.canonicalize().ok() == other.canonicalize().ok(),
        _ => false,
    }
}

#[cfg(unix)]
fn is_same(one: &Metadata, other: &Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

#[cfg(not(unix))]
fn is_same(_: &Metadata, _: &Metadata) -> bool {
    false
}

/// Whether standard output is redirected to this file.
#[cfg(unix)]
fn is_standard_output(there: &Metadata) -> bool {
    use std::os::fd::AsFd;
    let open = io::stdout().as_fd().try_clone_to_owned().and_then(|fd| File::from(fd).metadata());
    open.is_ok_and(|open| is_same(&open, there))
}

#[cfg(not(unix))]
fn is_standard_output(_: &Metadata) -> bool {
    false
}
