//! The machine the figures belong to.

use std::fs;

use serde::Serialize;

use crate::compiler::Compiler;
use crate::core_set::CoreSet;

/// What a reader needs to judge the figures.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// CPU model as /proc/cpuinfo names it.
    pub model: String,
    /// Cores that were used.
    pub cores: usize,
    /// Whether this is a virtual machine, as far as the CPU shows.
    pub virtual_machine: bool,
    /// Caches of the first core, e.g. `L2 1024K`.
    pub caches: Vec<String>,
    /// Memory in GiB.
    pub memory_gib: f64,
    /// Linux release.
    pub kernel: String,
    /// Transparent huge pages, for private and for shared memory.
    pub huge_pages: [String; 2],
    /// The C compiler of the hand-written programs.
    pub compiler: String,
}

impl Machine {
    /// Describes this machine.
    pub fn describe(cores: &CoreSet) -> Machine {
        let cpuinfo = read("/proc/cpuinfo");
        let first = cores.cpus.first().copied().unwrap_or(0);
        Machine {
            model: field(&cpuinfo, "model name").unwrap_or("unknown").to_owned(),
            cores: cores.len(),
            virtual_machine: field(&cpuinfo, "flags").is_some_and(|flags| flags.split(' ').any(|f| f == "hypervisor")),
            caches: caches(first),
            memory_gib: memory_gib(&read("/proc/meminfo")),
            kernel: read("/proc/sys/kernel/osrelease"),
            huge_pages: ["enabled", "shmem_enabled"]
                .map(|file| chosen(&read(&format!("/sys/kernel/mm/transparent_hugepage/{file}")))),
            compiler: Compiler::system().version().unwrap_or_else(|| "none".into()),
        }
    }

    /// The same as a Markdown list.
    pub fn markdown(&self) -> String {
        let virtual_machine = if self.virtual_machine { ", virtual machine" } else { "" };
        format!(
            "* {}{virtual_machine}; {} cores used, one thread each\n* {}\n* {:.0} GiB; huge pages: {}, shared {}\n* Linux {}; {}\n",
            self.model,
            self.cores,
            self.caches.join(", "),
            self.memory_gib,
            self.huge_pages[0],
            self.huge_pages[1],
            self.kernel,
            self.compiler,
        )
    }
}

/// The file's text without the line end; empty if there is none.
fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim_end().to_owned()
}

/// The value of the first `name : value` line.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().filter_map(|line| line.split_once(':')).find(|(key, _)| key.trim() == name).map(|(_, v)| v.trim())
}

fn memory_gib(meminfo: &str) -> f64 {
    let kib = field(meminfo, "MemTotal").and_then(|value| value.split(' ').next()?.parse::<f64>().ok());
    (kib.unwrap_or(0.0) / 1024.0 / 1024.0 * 10.0).round() / 10.0
}

/// The word in brackets, as in `always [madvise] never`.
fn chosen(text: &str) -> String {
    let word = text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(word, _)| word);
    word.unwrap_or("unknown").to_owned()
}

fn caches(cpu: usize) -> Vec<String> {
    let folder = format!("/sys/devices/system/cpu/cpu{cpu}/cache");
    let mut found = Vec::new();
    for index in 0..8 {
        let get = |file| read(&format!("{folder}/index{index}/{file}"));
        let (level, kind, size) = (get("level"), get("type"), get("size"));
        if !level.is_empty() && kind != "Instruction" {
            found.push(format!("L{level} {size}"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields() {
        let text = "processor\t: 0\nmodel name\t: Some CPU @ 2.0GHz: fast\nflags\t\t: fpu hypervisor\n";
        assert_eq!(field(text, "model name"), Some("Some CPU @ 2.0GHz: fast"));
        assert_eq!(field(text, "model"), None);
        assert_eq!(chosen("always [madvise] never"), "madvise");
        assert_eq!(memory_gib("MemTotal:       24117248 kB\n"), 23.0);
    }
}
