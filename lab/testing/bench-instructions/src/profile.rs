//! The output of a callgrind run: the manual of valgrind, chapter "Callgrind Format
//! Specification".

/// Instructions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// All but the following.
    pub instructions: u64,
    /// In libc's functions that copy, clear and compare memory.
    pub copying: u64,
}

impl Cost {
    /// Returns the cost of one of this many calls, rounded down.
    pub fn each(self, calls: u64) -> Option<Self> {
        Some(Self {
            instructions: self.instructions.checked_div(calls)?,
            copying: self.copying.checked_div(calls)?,
        })
    }
}

/// Returns the cost of all functions of a profile, written without compression.
///
/// Lines "fn=NAME", then "LINE COST" for every line of the function itself; after
/// "calls=…" follows the cost of the called function, which its own lines contain, too.
pub fn sum(text: &str) -> Cost {
    let mut cost = Cost::default();
    let (mut copies, mut call) = (false, false);
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("fn=") {
            copies = name.starts_with("__mem") || name.starts_with("mem");
        } else if line.starts_with("calls=") {
            call = true;
        } else if line.starts_with(|first: char| first.is_ascii_digit())
            && !std::mem::take(&mut call)
            && let Some((_, count)) = line.split_once(' ')
        {
            let sum = if copies {
                &mut cost.copying
            } else {
                &mut cost.instructions
            };
            *sum += count.trim().parse::<u64>().unwrap_or(0);
        }
    }
    cost
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A profile as callgrind writes it.
    const PROFILE: &str = "# callgrind format\nversion: 1\ncreator: callgrind-3.19.0\npid: 1\n\
        cmd: bench --run 0\npart: 1\n\n\ndesc: Trigger: Program termination\n\n\
        positions: line\nevents: Ir\nsummary: 1137\n\n\n\
        ob=/usr/lib/x86_64-linux-gnu/libc.so.6\n\
        fl=./string/memmove.S\nfn=__memcpy_avx_unaligned_erms\n225 30\n234 70\n\n\
        ob=bench\nfl=lib.rs\nfn=bench::serve\n12 1000\nfi=vec.rs\n40 7\n\
        cob=/usr/lib/x86_64-linux-gnu/libc.so.6\ncfi=./string/memmove.S\n\
        cfn=__memcpy_avx_unaligned_erms\ncalls=10 225 \n13 100\nfe=lib.rs\n14 30\n\n\
        totals: 1137\n";

    #[test]
    fn every_line_counts_once() {
        let cost = sum(PROFILE);
        assert_eq!((cost.instructions, cost.copying), (1037, 100));
    }

    #[test]
    fn a_call_is_a_part_of_all() {
        let cost = sum(PROFILE);
        let each = Cost {
            instructions: 103,
            copying: 10,
        };
        assert_eq!(cost.each(10), Some(each));
        assert_eq!(cost.each(0), None);
    }

    #[test]
    fn nothing_costs_nothing() {
        assert_eq!(sum(""), Cost::default());
        assert_eq!(sum("summary: 0\ntotals: 0\n"), Cost::default());
    }
}
