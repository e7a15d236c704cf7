//! Arithmetic in values: fio accepts `(4*1024)` wherever it accepts a number.
//!
//! An expression in brackets contains `+`, `-`, `*`, `/`, `%`, `^`, brackets, and numbers with the
//! units of the option. Division returns the integer part. An expression that overflows, has a
//! negative result or divides by zero is invalid.

/// Evaluates an expression in brackets, also one such as `(1)+(2)`. Returns `None` if the text does
/// not begin and end with a bracket. Returns `Some(None)` if the expression is invalid or exceeds
/// 64 bits. `parse_number` parses a number with its unit.
pub fn evaluate_in_brackets(
    text: &str,
    parse_number: &dyn Fn(&str) -> Option<u64>,
) -> Option<Option<u64>> {
    let text = text.trim();
    if !(text.starts_with('(') && text.ends_with(')')) {
        return None;
    }
    let mut reader = ExpressionReader { rest: text, parse_number, depth: 0 };
    let value = reader.parse_sum().filter(|_| reader.rest.trim().is_empty());
    Some(value.and_then(|value| u64::try_from(value).ok()))
}

/// Maximum nesting of brackets and signs, chosen. It bounds the recursion of the parser, and so its
/// stack.
const DEPTH_MAX: u32 = 64;

/// Parser of an expression.
struct ExpressionReader<'a> {
    /// Text that is not yet parsed.
    rest: &'a str,
    /// Parses a number with its unit.
    parse_number: &'a dyn Fn(&str) -> Option<u64>,
    /// Present nesting of brackets and signs.
    depth: u32,
}

impl ExpressionReader<'_> {
    /// Consumes the character `letter` if it is next. Returns true in that case.
    fn skip_if_next(&mut self, letter: char) -> bool {
        let rest = self.rest.trim_start();
        let rest_after = rest.strip_prefix(letter);
        self.rest = rest_after.unwrap_or(rest);
        rest_after.is_some()
    }

    /// Parses a sum of products. Returns `None` for another form and on overflow.
    fn parse_sum(&mut self) -> Option<i128> {
        let mut value = self.parse_product()?;
        loop {
            if self.skip_if_next('+') {
                value = value.checked_add(self.parse_product()?)?;
            } else if self.skip_if_next('-') {
                value = value.checked_sub(self.parse_product()?)?;
            } else {
                return Some(value);
            }
        }
    }

    /// Parses a product of powers. Returns `None` for another form, on overflow and for a division
    /// by 0.
    fn parse_product(&mut self) -> Option<i128> {
        let mut value = self.parse_power()?;
        loop {
            if self.skip_if_next('*') {
                value = value.checked_mul(self.parse_power()?)?;
            } else if self.skip_if_next('/') {
                value = value.checked_div(self.parse_power()?)?;
            } else if self.skip_if_next('%') {
                value = value.checked_rem(self.parse_power()?)?;
            } else {
                return Some(value);
            }
        }
    }

    /// Parses a factor, or a power `base^exponent` of two factors. A second `^` is not
    /// consumed, so `2^3^2` is invalid. Returns `None` for another form, a negative exponent,
    /// and on overflow.
    fn parse_power(&mut self) -> Option<i128> {
        let base = self.parse_factor()?;
        match self.skip_if_next('^') {
            true => base.checked_pow(u32::try_from(self.parse_factor()?).ok()?),
            false => Some(base),
        }
    }

    /// Parses a nested part with `parse`. Returns `None` beyond the maximum nesting.
    fn parse_nested(&mut self, parse: fn(&mut Self) -> Option<i128>) -> Option<i128> {
        self.depth += 1;
        let value = if self.depth > DEPTH_MAX { None } else { parse(self) };
        self.depth -= 1;
        value
    }

    /// Parses a number, a negation or a bracket. A sign precedes a power: `-2^2` is 4. Returns
    /// `None` for another form, and beyond the maximum nesting. Intermediate values may be
    /// negative; only the result may not.
    fn parse_factor(&mut self) -> Option<i128> {
        if self.skip_if_next('-') {
            return self.parse_nested(Self::parse_factor)?.checked_neg();
        }
        if self.skip_if_next('(') {
            return self.parse_nested(Self::parse_sum).filter(|_| self.skip_if_next(')'));
        }
        // The number with its unit. `parse_number` rejects an empty one.
        let end = self.rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(self.rest.len());
        let (digits, rest) = self.rest.split_at(end);
        self.rest = rest;
        (self.parse_number)(digits).map(i128::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Evaluates an expression of plain numbers without units.
    fn value(text: &str) -> Option<Option<u64>> {
        evaluate_in_brackets(text, &|number| number.parse().ok())
    }

    /// Worked by hand with the usual precedence. The fifth is 7 / 2 = 3, minus -1 % 5 = -1: 4.
    #[test]
    fn expressions_have_the_values_of_arithmetic() {
        assert_eq!(value("(4*1024)"), Some(Some(4096)));
        assert_eq!(value("(1+2*3)"), Some(Some(7)));
        assert_eq!(value("((1+2)*3)"), Some(Some(9)));
        assert_eq!(value("(1)+(2)"), Some(Some(3)));
        assert_eq!(value("(7 / 2 - -1 % 5)"), Some(Some(4)));
        assert_eq!(value("(2^10)"), Some(Some(1024)));
        assert_eq!(value("4096"), None);
    }

    /// The nested texts have more brackets or signs than the parser accepts.
    #[test]
    fn invalid_expressions_have_no_value() {
        for text in ["()", "(1+)", "(1/0)", "(1-2)", "(2^999)", "(x)", "((1)", "(1))"] {
            assert_eq!(value(text), Some(None), "{text}");
        }
        for opening in ["(", "(-"] {
            let nested = format!("{}1{}", opening.repeat(100_000), ")".repeat(100_000));
            assert_eq!(value(&nested), Some(None));
        }
    }
}
