//! The loader's view of a program: whether a library can be put in front of its C
//! library.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::{self, File, Metadata};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use object::elf::{EM_AARCH64, EM_X86_64, FileHeader64};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, FileKind, ReadCache, ReadRef, elf};
use rustix::fs::Access;
use rustix::process::{geteuid, getgid, getuid};

/// Longest chain of interpreters that `execve(2)` allows.
const INTERPRETERS: usize = 5;
/// Bytes of a script's first line that the kernel reads (BINPRM_BUF_SIZE).
const FIRST_LINE: u64 = 256;
/// The machine type of this processor (linux/elf-em.h).
const MACHINE: u16 = if cfg!(target_arch = "aarch64") {
    EM_AARCH64
} else {
    EM_X86_64
};
/// Prefixes of the runtime libraries that refuse to be loaded behind another.
const FIRST: [&str; 2] = ["libasan.so", "libclang_rt.asan"];
/// Type of the note `.note.go.buildid`, whose name is "Go".
const GO_BUILD_ID: u32 = 4;

/// Why no library gets in front of a program's C library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// It loads nothing at its start.
    Static,
    /// It makes its system calls itself.
    Go,
    /// Its C library is not GNU's.
    Musl,
    /// The loader ignores LD_PRELOAD if a program gets another user's rights (AT_SECURE).
    OtherUser,
    /// The loader ignores it, too, if the program's file grants capabilities.
    Capabilities,
    /// 32 bits, or another kind of processor.
    OtherMachine,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Obstacle::Static => "it is linked statically, so that no library can take the C library's place",
            Obstacle::Go => "it is a Go program, which calls the kernel without the C library",
            Obstacle::Musl => "it is linked with musl, and the library is for GNU's C library",
            Obstacle::OtherUser => {
                "it is setuid or setgid, and the loader then takes no library from the environment \
                 (start it as its owner)"
            }
            Obstacle::Capabilities => {
                "its file has capabilities, and the loader then takes no library from the environment \
                 (start it as root, or see setcap -r)"
            }
            Obstacle::OtherMachine => "it is not a 64-bit program of this processor",
        })
    }
}

/// Returns the obstacle in the program that these words start, and the file that has it.
/// That is the program, or an interpreter named by its first line, `/usr/bin/env`
/// included. Also returns `None` for a file that cannot be read or found: starting it
/// reports the error, or it is no obstacle.
pub fn obstacle(words: &[OsString]) -> Option<(PathBuf, Obstacle)> {
    let (path, file) = loaded(words)?;
    // The interpreter's rights count, not the script's.
    let found = rights(&path, &file.metadata().ok()?).or_else(|| of_elf(file))?;
    Some((path, found))
}

/// Explains why these words start no program.
pub fn no_program(words: &[OsString]) -> Option<String> {
    let program = words.first()?;
    let Some(path) = find(program) else {
        return Some(format!("there is no program {} in PATH", program.display()));
    };
    let kind = fs::metadata(&path).map(|found| found.is_file());
    let executes = rustix::fs::access(&path, Access::EXEC_OK).map_err(io::Error::from);
    let why = match (
        kind.and_then(|is_file| executes.map(|()| is_file)),
        loaded(words),
    ) {
        (Err(error), _) => error.to_string(),
        (Ok(false), _) => "it is no file".to_owned(),
        (_, None) => "it, or what its first line names, cannot be found or read".to_owned(),
        (_, Some((_, file))) => {
            let kind = FileKind::parse(&ReadCache::new(file));
            let is_elf = matches!(kind, Ok(FileKind::Elf32 | FileKind::Elf64));
            return (!is_elf).then(|| {
                format!(
                    "{}: it is neither an ELF file nor a script with an interpreter",
                    path.display()
                )
            });
        }
    };
    Some(format!("{}: {why}", path.display()))
}

/// Returns the obstacle in a program's own file.
pub fn obstacle_of(path: &Path) -> Option<Obstacle> {
    of_elf(File::open(path).ok()?)
}

/// Returns the library that must be loaded before any other: AddressSanitizer's, which
/// ends a program if another one comes first.
pub fn first_library(words: &[OsString]) -> Option<OsString> {
    let (_, file) = loaded(words)?;
    let needed = needed(&ReadCache::new(file)).unwrap_or_default();
    let is_first = |name: &OsString| {
        let is = |start: &&str| name.as_bytes().starts_with(start.as_bytes());
        FIRST.iter().any(is)
    };
    needed.into_iter().find(is_first)
}

/// Returns the libraries that an ELF file names (DT_NEEDED).
fn needed<'a>(data: impl ReadRef<'a>) -> object::Result<Vec<OsString>> {
    let header = FileHeader64::<Endianness>::parse(data)?;
    let endian = header.endian()?;
    let segments = header.program_headers(endian, data)?;
    let mut entries: &[elf::Dyn64<Endianness>] = &[];
    for segment in segments {
        entries = segment.dynamic(endian, data)?.unwrap_or(entries);
    }
    let value = |tag: i64| {
        let mut entries = entries.iter();
        let found = entries.find(|entry| entry.d_tag.get(endian) == tag);
        found.map_or(0, |entry| entry.d_val.get(endian))
    };
    let (address, bytes) = (value(elf::DT_STRTAB), value(elf::DT_STRSZ));
    let mut names: &[u8] = &[];
    for segment in segments {
        if segment.p_type(endian) == elf::PT_LOAD
            && let Ok(Some(found)) = segment.data_range(endian, data, address, bytes)
        {
            names = found;
        }
    }
    let needed = (entries.iter()).filter(|entry| entry.d_tag.get(endian) == elf::DT_NEEDED);
    let name = |entry: &elf::Dyn64<Endianness>| {
        let rest = names.get(usize::try_from(entry.d_val.get(endian)).ok()?..)?;
        let name = rest.split(|&byte| byte == 0).next()?;
        Some(OsString::from_vec(name.to_vec()))
    };
    Ok(needed.filter_map(name).collect())
}

/// Returns the file that the kernel loads when it executes these words.
fn loaded(words: &[OsString]) -> Option<(PathBuf, File)> {
    let mut path = find(words.first()?)?;
    for _ in 0..INTERPRETERS {
        let file = File::open(&path).ok()?;
        let Some((interpreter, argument)) = interpreter(&file) else {
            return Some((path, file));
        };
        let of_env = Path::new(&interpreter).file_name() == Some(OsStr::new("env"));
        path = match argument.filter(|_| of_env) {
            Some(program) => find(&program)?,
            None => PathBuf::from(interpreter),
        };
    }
    None
}

/// Finds a program as execvp(3) does.
fn find(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(program));
    }
    let executable = |path: &PathBuf| {
        fs::metadata(path)
            .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    let path = env::var_os("PATH")?;
    let mut candidates = env::split_paths(&path).map(|directory| directory.join(program));
    candidates.find(executable)
}

/// Returns the interpreter in a script's first line, and its argument.
fn interpreter(file: &File) -> Option<(OsString, Option<OsString>)> {
    let mut line = Vec::new();
    let mut reader = BufReader::new(file.take(FIRST_LINE));
    reader.read_until(b'\n', &mut line).ok()?;
    let line = line.strip_prefix(b"#!")?.trim_ascii();
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let end = line.iter().position(blank).unwrap_or(line.len());
    let (interpreter, rest) = line.split_at(end);
    let owned = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
    let argument = rest.trim_ascii();
    (!interpreter.is_empty()).then(|| {
        (
            owned(interpreter),
            (!argument.is_empty()).then(|| owned(argument)),
        )
    })
}

/// Returns whether the kernel sets AT_SECURE at the program's start (commoncap.c).
fn rights(path: &Path, metadata: &Metadata) -> Option<Obstacle> {
    const SETUID: u32 = 0o4000;
    const SETGID_OF_GROUP: u32 = 0o2010;
    let mode = metadata.mode();
    let user = mode & SETUID != 0 && metadata.uid() != getuid().as_raw();
    let group = mode & SETGID_OF_GROUP == SETGID_OF_GROUP && metadata.gid() != getgid().as_raw();
    if user || group {
        return Some(Obstacle::OtherUser);
    }
    // Root has them all anyway.
    let privileged = !geteuid().is_root()
        && rustix::fs::getxattr(path, c"security.capability", &mut [0_u8; 64]).is_ok();
    privileged.then_some(Obstacle::Capabilities)
}

/// Returns `None` for a broken ELF file or a file of another kind: it does not start.
fn of_elf(file: File) -> Option<Obstacle> {
    let data = ReadCache::new(file);
    let kind = FileKind::parse(&data).ok()?;
    if kind == FileKind::Elf32 {
        return Some(Obstacle::OtherMachine);
    }
    let header = FileHeader64::<Endianness>::parse(&data).ok()?;
    let endian = header.endian().ok()?;
    if header.e_machine(endian) != MACHINE {
        return Some(Obstacle::OtherMachine);
    }
    let mut loader = None;
    for segment in header.program_headers(endian, &data).ok()? {
        if segment.p_type(endian) == elf::PT_INTERP {
            loader = segment.interpreter(endian, &data).ok()?;
        }
        let Ok(Some(mut notes)) = segment.notes(endian, &data) else {
            continue;
        };
        while let Ok(Some(note)) = notes.next() {
            if note.name() == b"Go" && note.n_type(endian) == GO_BUILD_ID {
                return Some(Obstacle::Go);
            }
        }
    }
    let loader = match loader {
        Some(loader) => Path::new(OsStr::from_bytes(loader)),
        None => return Some(Obstacle::Static),
    };
    let name = loader.file_name().unwrap_or_default().as_bytes();
    name.starts_with(b"ld-musl").then_some(Obstacle::Musl)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// A directory with files of a test.
    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Self {
            let place =
                env::temp_dir().join(format!("tw-executable-{}-{name}", std::process::id()));
            fs::create_dir_all(&place).unwrap();
            Place(place)
        }

        fn file(&self, name: &str, content: &[u8], mode: u32) -> OsString {
            let path = self.0.join(name);
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            path.into_os_string()
        }

        /// Compiles a program that does nothing.
        fn compile(&self, name: &str, compiler: &str, options: &[&str]) -> Option<OsString> {
            let source = self.file(
                &format!("{name}.c"),
                b"int main(void) { return 0; }\n",
                0o644,
            );
            let program = self.0.join(name);
            let mut command = Command::new(compiler);
            command.args(options).arg("-o").arg(&program).arg(source);
            command
                .status()
                .ok()?
                .success()
                .then(|| program.into_os_string())
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn found(program: OsString) -> Option<Obstacle> {
        obstacle(&[program]).map(|(_, obstacle)| obstacle)
    }

    #[test]
    fn what_compilers_make_is_told_apart() {
        let place = Place::new("compilers");
        let compile = |name, compiler, options: &[&str]| place.compile(name, compiler, options);
        assert_eq!(found(compile("dynamic", "cc", &[]).unwrap()), None);
        for (name, option) in [("static", "-static"), ("static-pie", "-static-pie")] {
            let program = compile(name, "cc", &[option]).unwrap();
            assert_eq!(found(program), Some(Obstacle::Static), "{option}");
        }
        let Some(program) = compile("musl", "musl-gcc", &[]) else {
            tidewall_skip::missing(
                "what_compilers_make_is_told_apart",
                "musl-gcc (scripts/setup.sh)",
            );
            return;
        };
        assert_eq!(found(program), Some(Obstacle::Musl));
    }

    #[test]
    fn a_runtime_that_must_come_first_is_found() {
        let place = Place::new("runtime");
        let plain = place.compile("plain", "cc", &[]).unwrap();
        assert_eq!(first_library(&[plain]), None);
        let Some(program) = place.compile("asan", "cc", &["-fsanitize=address"]) else {
            return tidewall_skip::missing("a_runtime_that_must_come_first_is_found", "libasan");
        };
        let first = first_library(std::slice::from_ref(&program)).unwrap();
        assert!(first.as_bytes().starts_with(b"libasan.so."), "{first:?}");
        let line = format!("#!{}\n", program.display());
        let script = place.file("script", line.as_bytes(), 0o755);
        assert_eq!(first_library(&[script]), Some(first));
        // Broken files name nothing.
        let bytes = fs::read(&program).unwrap();
        for length in [64, 200, 4096, bytes.len() / 2] {
            let cut = place.file("cut", &bytes[..length], 0o755);
            let _ = first_library(&[cut]);
        }
    }

    #[test]
    fn a_note_of_go_is_read() {
        let place = Place::new("go");
        let note = ".section .note.go.buildid, \"a\", @note\n\
            .long 4, 4, 4\n.asciz \"Go\\0\"\n.ascii \"abcd\"\n";
        let source = place.file("note.s", note.as_bytes(), 0o644);
        let source = source.to_str().unwrap();
        let program = place.compile("go", "cc", &[source]).unwrap();
        assert_eq!(found(program), Some(Obstacle::Go));
    }

    #[test]
    fn scripts_are_what_interprets_them() {
        let place = Place::new("scripts");
        let program = place.compile("static", "cc", &["-static"]).unwrap();
        let program = program.to_str().unwrap();
        for line in [
            format!("#!{program}\n"),
            format!("#! {program} -x\nmore"),
            format!("#!/usr/bin/env {program}\n"),
        ] {
            let script = place.file("script", line.as_bytes(), 0o755);
            let (at, obstacle) = obstacle(&[script]).unwrap();
            assert_eq!(
                (at.to_str(), obstacle),
                (Some(program), Obstacle::Static),
                "{line}"
            );
        }
        let own = place.0.join("loop");
        let line = format!("#!{}\n", own.display());
        assert_eq!(found(place.file("loop", line.as_bytes(), 0o755)), None);
        assert_eq!(found(place.file("sh", b"#!/bin/sh\n", 0o755)), None);
    }

    #[test]
    fn other_users_and_machines_are_said() {
        let place = Place::new("rights");
        let program = place.compile("program", "cc", &[]).unwrap();
        let mut bytes = fs::read(&program).unwrap();
        // e_machine, then EI_CLASS.
        bytes[18] = 0xf3;
        let other = place.file("risc-v", &bytes, 0o755);
        assert_eq!(found(other), Some(Obstacle::OtherMachine));
        bytes[4] = 1;
        let other = place.file("short", &bytes, 0o755);
        assert_eq!(found(other), Some(Obstacle::OtherMachine));
        if !getuid().is_root() {
            tidewall_skip::missing("other_users_and_machines_are_said", "root");
            return;
        }
        std::os::unix::fs::chown(&program, Some(12345), Some(12345)).unwrap();
        for (mode, expected) in [
            (0o4755, Some(Obstacle::OtherUser)),
            (0o2755, Some(Obstacle::OtherUser)),
            (0o2745, None),
            (0o755, None),
        ] {
            fs::set_permissions(&program, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(found(program.clone()), expected, "{mode:o}");
        }
    }

    #[test]
    fn what_is_no_program_is_no_obstacle() {
        let place = Place::new("none");
        for content in [
            &b""[..],
            b"#!",
            b"#!\n",
            b"\x7fELF",
            b"\x7fELF\x02\x01\x01",
            b"text",
        ] {
            let file = place.file("file", content, 0o755);
            assert!(
                matches!(found(file), None | Some(Obstacle::OtherMachine)),
                "{content:?}"
            );
        }
        assert_eq!(found(OsString::from("tw-no-such-program")), None);
        assert_eq!(found(OsString::from("/")), None);
    }
}
