//! Search attributes: typed facts about a workflow that an engine sets and that listings filter by.
//!
//! They belong to the workflow and not to a run: a run that continues as new finds them as they were.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::id::{AttributeName, Millis};
use crate::keys;
use crate::limits::{ATTRIBUTE_TEXT_BYTES_MAX, ATTRIBUTE_TEXTS_MAX, ATTRIBUTES_BYTES_MAX, ATTRIBUTES_MAX};
use crate::reject::Reject;
use crate::validate::at_most;

/// The value of a search attribute. Variants are only added at the end.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum AttributeValue {
    /// A text.
    Text(String),
    /// A whole number.
    Integer(i64),
    /// Yes or no.
    Bool(bool),
    /// A time, in unix milliseconds.
    Time(Millis),
    /// Several texts; a filter matches any of them.
    Texts(Vec<String>),
}

/// A workflow's search attributes.
pub type Attributes = BTreeMap<AttributeName, AttributeValue>;

/// A change of search attributes: the named ones are set, or removed if they are null; the others stay.
pub type AttributesUpdate = BTreeMap<AttributeName, Option<AttributeValue>>;

const BOOL: u8 = 1;
const INTEGER: u8 = 2;
const TIME: u8 = 3;
const TEXT: u8 = 4;

/// The forms under which a value is found: one, or one for each text of several. A form says where it ends, and
/// forms of one type sort as their values do.
pub(crate) fn forms(value: &AttributeValue) -> BTreeSet<Vec<u8>> {
    match value {
        AttributeValue::Text(text) => BTreeSet::from([text_form(text)]),
        AttributeValue::Integer(number) => BTreeSet::from([integer_form(*number)]),
        AttributeValue::Bool(yes) => BTreeSet::from([vec![BOOL, u8::from(*yes)]]),
        AttributeValue::Time(at) => BTreeSet::from([time_form(*at)]),
        AttributeValue::Texts(texts) => texts.iter().map(|text| text_form(text)).collect(),
    }
}

/// Whole numbers with their sign turned, so that negative ones sort first.
pub(crate) fn integer_form(number: i64) -> Vec<u8> {
    let turned = number.cast_unsigned() ^ (1 << 63);
    [&[INTEGER][..], &turned.to_be_bytes()].concat()
}

pub(crate) fn time_form(at: Millis) -> Vec<u8> {
    [&[TIME][..], &at.0.to_be_bytes()].concat()
}

/// A NUL and a byte that no text begins with go for a NUL in the text, a NUL and a 1 for its end: that sorts before
/// all that goes on.
fn text_form(text: &str) -> Vec<u8> {
    let mut form = vec![TEXT];
    for byte in text.bytes() {
        form.push(byte);
        if byte == 0 {
            form.push(0xff);
        }
    }
    form.extend([0, 1]);
    form
}

/// The forms of the integers, or of the times, are between this one and the next type's.
pub(crate) fn first_form(is_time: bool) -> (Vec<u8>, Vec<u8>) {
    if is_time { (vec![TIME], vec![TIME + 1]) } else { (vec![INTEGER], vec![INTEGER + 1]) }
}

/// Refuses a change that is too large by itself.
pub(crate) fn check_update(update: &AttributesUpdate) -> Result<(), Reject> {
    at_most("the number of search attributes", update.len() as u64, ATTRIBUTES_MAX as u64)?;
    for (name, value) in update {
        match value {
            Some(AttributeValue::Text(text)) => check_text(name, text)?,
            Some(AttributeValue::Texts(texts)) => {
                let what = format!("the number of texts in search attribute {name}");
                at_most(&what, texts.len() as u64, ATTRIBUTE_TEXTS_MAX as u64)?;
                texts.iter().try_for_each(|text| check_text(name, text))?;
            }
            Some(AttributeValue::Integer(_) | AttributeValue::Bool(_) | AttributeValue::Time(_)) | None => {}
        }
    }
    Ok(())
}

pub(crate) fn check_text(name: &AttributeName, text: &str) -> Result<(), Reject> {
    let what = format!("the length of a text in search attribute {name}");
    at_most(&what, text.len() as u64, ATTRIBUTE_TEXT_BYTES_MAX as u64)
}

/// The attributes after a change; refused if they become too many or too large.
pub(crate) fn updated(mut attributes: Attributes, update: &AttributesUpdate) -> Result<Attributes, Reject> {
    check_update(update)?;
    for (name, value) in update {
        match value {
            Some(value) => attributes.insert(name.clone(), value.clone()),
            None => attributes.remove(name),
        };
    }
    at_most("the number of search attributes", attributes.len() as u64, ATTRIBUTES_MAX as u64)?;
    let bytes = keys::encode(&attributes).len() as u64;
    at_most("the size of the search attributes", bytes, ATTRIBUTES_BYTES_MAX as u64)?;
    Ok(attributes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::trial::id;

    fn form(value: AttributeValue) -> Vec<u8> {
        forms(&value).pop_first().unwrap()
    }

    fn text() -> impl Strategy<Value = String> {
        prop_oneof!["[\0\u{1}a\u{ff}]{0,4}", any::<String>()]
    }

    proptest! {
        #[test]
        fn forms_sort_as_values_do(a in any::<i64>(), b in any::<i64>(), s in text(), t in text(), x in any::<u64>(), y in any::<u64>()) {
            prop_assert_eq!(integer_form(a).cmp(&integer_form(b)), a.cmp(&b));
            prop_assert_eq!(time_form(Millis(x)).cmp(&time_form(Millis(y))), x.cmp(&y));
            prop_assert_eq!(text_form(&s).cmp(&text_form(&t)), s.cmp(&t));
        }

        /// So that what follows a form in a key never makes it another one.
        #[test]
        fn no_form_begins_another(s in text(), t in text()) {
            prop_assert_eq!(text_form(&t).starts_with(&text_form(&s)), s == t);
        }
    }

    #[test]
    fn types_do_not_meet() {
        let at_zero = [AttributeValue::Bool(false), AttributeValue::Integer(0), AttributeValue::Time(Millis(0))];
        let forms: BTreeSet<Vec<u8>> =
            at_zero.into_iter().chain([AttributeValue::Text(String::new())]).map(form).collect();
        assert_eq!(forms.len(), 4);
        for (is_time, inside) in [(false, integer_form(i64::MAX)), (true, time_form(Millis(u64::MAX)))] {
            let (from, to) = first_form(is_time);
            assert!(from < inside && inside < to);
        }
        assert!(integer_form(i64::MIN) < integer_form(-1) && integer_form(-1) < integer_form(0));
    }

    #[test]
    fn each_distinct_text_is_found() {
        let texts = AttributeValue::Texts(vec!["b".into(), "a".into(), "b".into()]);
        assert_eq!(forms(&texts).into_iter().collect::<Vec<_>>(), [text_form("a"), text_form("b")]);
        assert!(forms(&AttributeValue::Texts(Vec::new())).is_empty());
    }

    #[test]
    fn a_change_sets_removes_and_leaves_alone() {
        let update = |pairs: &[(&str, Option<i64>)]| -> AttributesUpdate {
            pairs.iter().map(|(name, value)| (id(name), value.map(AttributeValue::Integer))).collect()
        };
        let attributes = updated(Attributes::new(), &update(&[("a", Some(1)), ("b", Some(2)), ("c", None)])).unwrap();
        let attributes = updated(attributes, &update(&[("a", None), ("b", Some(3))])).unwrap();
        assert_eq!(attributes, Attributes::from([(id("b"), AttributeValue::Integer(3))]));
    }

    #[test]
    fn too_much_is_refused() {
        let refused = |attributes: Attributes, update: &[(&str, AttributeValue)]| {
            let update = update.iter().map(|(name, value)| (id(name), Some(value.clone()))).collect();
            match updated(attributes, &update) {
                Err(Reject::LimitExceeded { limit, actual, .. }) => (limit, actual),
                other => panic!("{other:?}"),
            }
        };
        let text = |length| AttributeValue::Text("x".repeat(length));
        let texts = |count| AttributeValue::Texts(vec![String::new(); count]);
        let full: Attributes = (0..64).map(|n| (id(&format!("a{n}")), AttributeValue::Bool(true))).collect();
        assert_eq!(refused(Attributes::new(), &[("a", text(1_025))]), (1_024, 1_025));
        assert_eq!(refused(Attributes::new(), &[("a", texts(33))]), (32, 33));
        assert_eq!(refused(full.clone(), &[("b", AttributeValue::Bool(true))]), (64, 65));
        let large: Attributes = (0..15).map(|n| (id(&format!("a{n}")), text(1_024))).collect();
        let (limit, actual) = refused(large, &[("b", text(1_024))]);
        assert!(limit == 16_384 && actual > limit, "{actual}");
        assert!(updated(full, &AttributesUpdate::from([(id("a0"), None), (id("b"), Some(text(1_024)))])).is_ok());
    }
}
