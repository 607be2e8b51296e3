//! Sizes on the command line.

use anyhow::anyhow;

use crate::exit::Error;

/// Largest size.
const MOST: usize = 1 << 30;

/// Parses bytes; K, M and G are powers of 1024.
pub fn parse(text: &str) -> Result<usize, String> {
    let (digits, unit) = match text.find(|c: char| !c.is_ascii_digit()) {
        Some(at) => text.split_at(at),
        None => (text, ""),
    };
    let shift = match unit.to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KIB" => 10,
        "M" | "MIB" => 20,
        "G" | "GIB" => 30,
        _ => return Err("bytes, or with K, M or G: 8, 4K, 16M".to_owned()),
    };
    let number: usize = digits.parse().map_err(|_| "bytes, or with K, M or G: 8, 4K, 16M".to_owned())?;
    number.checked_mul(1 << shift).filter(|&bytes| bytes <= MOST).ok_or_else(|| "at most 1G".to_owned())
}

/// From `smallest` to `largest` by a factor; both ends are there.
pub fn series(smallest: usize, largest: usize, factor: usize) -> Result<Vec<usize>, Error> {
    if smallest == 0 || smallest > largest || factor < 2 {
        return Err(Error::input(anyhow!(
            "sizes from {smallest} to {largest} by a factor of {factor}: the smallest is at least 1 and at most the \
             largest, the factor at least 2"
        )));
    }
    let sizes = std::iter::successors(Some(smallest), |size| size.checked_mul(factor));
    let mut sizes: Vec<_> = sizes.take_while(|&size| size < largest).collect();
    sizes.push(largest);
    Ok(sizes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_powers_of_1024() {
        assert_eq!(["8", "4K", "16MiB", "1g"].map(parse), [Ok(8), Ok(4096), Ok(16 << 20), Ok(1 << 30)]);
        assert!(parse("2G").is_err() && parse("x").is_err() && parse("1T").is_err());
    }

    #[test]
    fn both_ends_are_there() {
        assert_eq!(series(1, 10, 4).ok(), Some(vec![1, 4, 10]));
        assert_eq!(series(7, 7, 2).ok(), Some(vec![7]));
        assert!(series(0, 7, 2).is_err() && series(8, 7, 2).is_err() && series(1, 7, 1).is_err());
    }
}
