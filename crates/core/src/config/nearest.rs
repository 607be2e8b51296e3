//! Nearest names: what somebody meant who wrote a name that there is not.

/// Says which of `known` are nearest to `given`, or all of them if none is near.
pub fn suggest(given: &str, known: impl Iterator<Item = String>) -> String {
    let mut ranked: Vec<(usize, String)> = known.map(|name| (distance(given, &name), name)).collect();
    ranked.sort();
    // A third of the letters may be wrong; the prefix that all variables share is not counted as right letters.
    let letters = given.trim_start_matches(super::PREFIX).chars().count();
    let near: Vec<&str> = ranked
        .iter()
        .filter(|(distance, _)| *distance <= letters.div_ceil(3))
        .map(|(_, name)| name.as_str())
        .take(3)
        .collect();
    if near.is_empty() {
        let all: Vec<&str> = ranked.iter().map(|(_, name)| name.as_str()).collect();
        return format!("known are {}", all.join(", "));
    }
    format!("did you mean {}?", near.join(" or "))
}

/// Levenshtein distance, in characters: Wagner and Fischer 1974, one row at a time.
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &b) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        for (from, to, expected) in [
            ("", "", 0),
            ("", "abc", 3),
            ("kitten", "sitting", 3),
            ("abc", "abc", 0),
            ("flaw", "lawn", 2),
            ("ä", "a", 1),
        ] {
            assert_eq!((distance(from, to), distance(to, from)), (expected, expected), "{from} {to}");
        }
    }

    #[test]
    fn the_near_ones_nearest_first_else_all() {
        let known = || ["timeout", "transport", "path"].map(str::to_owned).into_iter();
        assert_eq!(suggest("timout", known()), "did you mean timeout?");
        assert_eq!(suggest("zzz", known()), "known are path, timeout, transport");
    }
}
