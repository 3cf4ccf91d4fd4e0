//! Opaque bytes with a content type: inputs, results, errors and event bodies.
//!
//! In the log a payload is its bytes. In JSON it is readable: `{"content_type": .., "json": ..}` for
//! JSON (kept to the letter), `"text"` for text types and for JSON that would not come back to the
//! letter, `"base64"` for the rest, and `null` for no payload. The content type may be left out; it is then
//! that of the form.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

/// The content type of JSON payloads.
pub const JSON: &str = "application/json";
/// The content type of payloads that nobody described.
pub const OCTETS: &str = "application/octet-stream";

/// Bytes that the store keeps and never reads. Empty by default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Payload {
    /// What the bytes are, as in HTTP. Empty together with `data`.
    pub content_type: String,
    /// The bytes.
    pub data: Bytes,
}

impl Payload {
    /// A JSON payload of any serializable value.
    ///
    /// # Errors
    /// When `value` cannot be written as JSON (a map with keys that are no text, say).
    pub fn json<T: Serialize + ?Sized>(value: &T) -> Result<Self, serde_json::Error> {
        Ok(Self { content_type: JSON.to_owned(), data: serde_json::to_vec(value)?.into() })
    }

    /// A plain text payload.
    pub fn text(text: impl Into<String>) -> Self {
        Self { content_type: "text/plain".to_owned(), data: text.into().into_bytes().into() }
    }

    /// A payload of bytes without further description.
    pub fn octets(data: impl Into<Bytes>) -> Self {
        Self { content_type: OCTETS.to_owned(), data: data.into() }
    }

    /// True if there is no payload.
    pub fn is_empty(&self) -> bool {
        self.data.is_empty() && self.content_type.is_empty()
    }
}

#[derive(Serialize, Deserialize)]
struct InLog {
    content_type: String,
    data: Bytes,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct InJson<'a> {
    #[serde(default)]
    content_type: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "even_null")]
    json: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "Option::is_none", borrow)]
    text: Option<std::borrow::Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    base64: Option<String>,
}

/// A JSON value that is `null` is a value; serde would take it for a missing one.
fn even_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(deserializer).map(Some)
}

impl Serialize for Payload {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if !serializer.is_human_readable() {
            let value = InLog { content_type: self.content_type.clone(), data: self.data.clone() };
            return value.serialize(serializer);
        }
        if self.is_empty() {
            return serializer.serialize_none();
        }
        let text = std::str::from_utf8(&self.data).ok();
        let content_type = Some(self.content_type.clone());
        let mut value = InJson { content_type, json: None, text: None, base64: None };
        let is_json = self.content_type == JSON;
        if let Some(text) = text.filter(|_| is_json || self.content_type.starts_with("text/")) {
            let raw = RawValue::from_string(text.to_owned()).ok().filter(|raw| is_json && raw.get() == text);
            match raw {
                Some(raw) => value.json = Some(raw),
                None => value.text = Some(text.into()),
            }
        } else {
            value.base64 = Some(STANDARD.encode(&self.data));
        }
        value.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Payload {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        if !deserializer.is_human_readable() {
            let InLog { content_type, data } = InLog::deserialize(deserializer)?;
            return Ok(Self { content_type, data });
        }
        let Some(value) = Option::<InJson<'_>>::deserialize(deserializer)? else {
            return Ok(Self::default());
        };
        let (fallback, data) = match (value.json, value.text, value.base64) {
            (Some(json), None, None) => (JSON, Bytes::from(String::from(Box::<str>::from(json)))),
            (None, Some(text), None) => ("text/plain", Bytes::from(text.into_owned())),
            (None, None, Some(text)) => {
                let data = STANDARD.decode(text).map_err(|e| D::Error::custom(format!("base64: {e}")))?;
                (OCTETS, Bytes::from(data))
            }
            _ => return Err(D::Error::custom("a payload has exactly one of json, text and base64")),
        };
        Ok(Self { content_type: value.content_type.unwrap_or_else(|| fallback.to_owned()), data })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_read_back_in_both_encodings() {
        let all = [
            Payload::default(),
            Payload::json(&serde_json::json!({"a": [1, 2.5, null]})).unwrap(),
            Payload::text("plain é"),
            Payload::octets(vec![0, 255, 1]),
            Payload::json(&()).unwrap(),
            Payload { content_type: JSON.into(), data: Bytes::from_static(b"no json") },
            Payload { content_type: JSON.into(), data: Bytes::from_static(b" {\"a\":1}\n") },
            Payload { content_type: JSON.into(), data: Bytes::new() },
            Payload { content_type: String::new(), data: Bytes::from_static(b"undescribed") },
            Payload { content_type: "text/csv".into(), data: Bytes::from_static(&[0xff]) },
        ];
        for payload in all {
            let text = serde_json::to_string(&payload).unwrap();
            assert_eq!(serde_json::from_str::<Payload>(&text).unwrap(), payload, "{text}");
            let bytes = postcard::to_stdvec(&payload).unwrap();
            assert_eq!(postcard::from_bytes::<Payload>(&bytes).unwrap(), payload);
        }
    }

    #[test]
    fn json_is_kept_to_the_letter() {
        let text = r#"{"content_type":"application/json","json":{"n": 12345678901234567890.10}}"#;
        let payload: Payload = serde_json::from_str(text).unwrap();
        assert_eq!(&payload.data[..], br#"{"n": 12345678901234567890.10}"#);
        assert_eq!(serde_json::to_string(&payload).unwrap(), text);
    }

    #[test]
    fn the_content_type_may_be_left_out() {
        let payload: Payload = serde_json::from_str(r#"{"json":null}"#).unwrap();
        assert_eq!((payload.content_type.as_str(), &payload.data[..]), (JSON, &b"null"[..]));
        let payload: Payload = serde_json::from_str(r#"{"text":"a"}"#).unwrap();
        assert_eq!(payload, Payload::text("a"));
    }

    #[test]
    fn two_bodies_are_refused() {
        assert!(serde_json::from_str::<Payload>(r#"{"text":"a","base64":"YQ=="}"#).is_err());
        assert!(serde_json::from_str::<Payload>("{}").is_err());
    }
}
