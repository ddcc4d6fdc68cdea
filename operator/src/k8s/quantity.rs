//! Sizes as Kubernetes writes them.

/// The text is no quantity, or one that is no size of a volume.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no size; write one such as 20Gi")]
pub struct QuantityError(String);

/// Suffixes and what they multiply by, in thousandths, so that `m` has a place.
const SUFFIXES: &[(&str, u128)] = &[
    ("Ki", 1000 << 10),
    ("Mi", 1000 << 20),
    ("Gi", 1000 << 30),
    ("Ti", 1000 << 40),
    ("Pi", 1000 << 50),
    ("Ei", 1000 << 60),
    ("m", 1),
    ("k", 1_000_000),
    ("M", 1_000_000_000),
    ("G", 1_000_000_000_000),
    ("T", 1_000_000_000_000_000),
    ("P", 1_000_000_000_000_000_000),
    ("E", 1_000_000_000_000_000_000_000),
    ("", 1000),
];

/// A quantity in thousandths, rounded up. Covers what Kubernetes accepts but fractions of a thousandth.
///
/// # Errors
/// The text is none.
pub fn thousandths(text: &str) -> Result<u128, QuantityError> {
    let error = || QuantityError(text.to_owned());
    if let Some((number, exponent)) = text.split_once(['e', 'E']).filter(|(_, exponent)| !exponent.is_empty()) {
        let exponent: i32 = exponent.parse().map_err(|_| error())?;
        let scale = 10_u128.checked_pow(u32::try_from(exponent + 3).map_err(|_| error())?).ok_or_else(error)?;
        return scaled(number, scale).ok_or_else(error);
    }
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let suffix = text.get(digits.len()..).unwrap_or_default();
    let (_, scale) = SUFFIXES.iter().find(|(name, _)| *name == suffix).ok_or_else(error)?;
    scaled(digits, *scale).ok_or_else(error)
}

/// A decimal number times a scale, rounded up.
fn scaled(number: &str, scale: u128) -> Option<u128> {
    let number = number.strip_prefix('+').unwrap_or(number);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(fraction) || fraction.len() > 9 {
        return None;
    }
    let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let part: u128 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    let unit = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    whole.checked_mul(scale)?.checked_add(part.checked_mul(scale)?.div_ceil(unit))
}

/// A size in bytes, rounded up.
///
/// # Errors
/// The text is no quantity, zero, or more than fits.
pub fn bytes(text: &str) -> Result<u64, QuantityError> {
    let bytes = thousandths(text)?.div_ceil(1000);
    u64::try_from(bytes).ok().filter(|bytes| *bytes > 0).ok_or_else(|| QuantityError(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("1", Some(1))]
    #[case("1Gi", Some(1 << 30))]
    #[case("1024Mi", Some(1 << 30))]
    #[case("1.5Gi", Some(3 << 29))]
    #[case("2G", Some(2_000_000_000))]
    #[case("1e3", Some(1000))]
    #[case("5E", Some(5_000_000_000_000_000_000))]
    #[case("1500m", Some(2))]
    #[case(".5Ki", Some(512))]
    #[case("0", None)]
    #[case("", None)]
    #[case("-1Gi", None)]
    #[case("1GiB", None)]
    #[case("Gi", None)]
    #[case("1..5", None)]
    #[case("99999Ei", None)]
    fn sizes(#[case] text: &str, #[case] expected: Option<u64>) {
        assert_eq!(bytes(text).ok(), expected);
    }
}
