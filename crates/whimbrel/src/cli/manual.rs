//! `whimbrel completions` and `whimbrel man`: from the same definitions as the help.

use super::args::Args;
use super::messages::bytes;
use super::output::Output;
use clap::{Command, CommandFactory};
use std::path::Path;
use whimbrel_core::Error;
use whimbrel_families::failure::Result;

/// Prints a shell's completion script.
pub fn completions_command(shell: clap_complete::Shell) -> Result<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "whimbrel", &mut script);
    bytes(&script)?;
    Ok(0)
}

/// Prints one manual page, or writes one for each command into a folder.
pub fn man_command(out: Option<&Path>, force: bool) -> Result<u8> {
    let mut command = Args::command();
    command.build();
    let Some(folder) = out else {
        bytes(&page(command)?)?;
        return Ok(0);
    };
    std::fs::create_dir_all(folder).map_err(|e| Error::storage(folder.display(), e))?;
    for (name, command) in pages("whimbrel".into(), command) {
        let output = Output::check(&folder.join(format!("{name}.1")), force, [])?;
        let text = page(command)?;
        output.write_with(|out| {
            out.write_all(&text).map_err(|e| Error::storage(output.shown(), e).into())
        })?;
    }
    Ok(0)
}

/// The command and all below it, under the names of their pages.
fn pages(name: String, command: Command) -> Vec<(String, Command)> {
    let below: Vec<(String, Command)> = command
        .get_subcommands()
        .filter(|below| below.get_name() != "help")
        .flat_map(|below| pages(format!("{name}-{}", below.get_name()), below.clone()))
        .collect();
    std::iter::once((name, command)).chain(below).collect()
}

fn page(command: Command) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    let rendered = clap_mangen::Man::new(command).render(&mut text);
    rendered.map_err(|e| Error::internal(format!("the manual page cannot be written: {e}")))?;
    Ok(text)
}
