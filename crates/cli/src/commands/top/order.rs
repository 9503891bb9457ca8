//! In which order programs are shown.

/// By what programs are sorted, most first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Sort {
    /// Time that the file system took for them.
    #[default]
    Time,
    /// Requests.
    Requests,
    /// Bytes read.
    Read,
    /// Bytes written.
    Written,
    /// Names.
    Name,
}

impl Sort {
    const ALL: [Self; 5] = [Self::Time, Self::Requests, Self::Read, Self::Written, Self::Name];

    /// The one after it.
    pub fn next(self) -> Self {
        let at = Self::ALL.iter().position(|s| *s == self).unwrap_or(0);
        Self::ALL.get((at + 1) % Self::ALL.len()).copied().unwrap_or_default()
    }
}

/// Order of the programs.
#[derive(Debug, Clone, Copy, Default)]
pub struct Order {
    /// By what.
    pub by: Sort,
    /// The least first.
    pub reversed: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sorting_goes_round() {
        let mut sort = Sort::default();
        for _ in 0..Sort::ALL.len() {
            sort = sort.next();
        }
        assert_eq!((sort, sort.next()), (Sort::Time, Sort::Requests));
    }
}
