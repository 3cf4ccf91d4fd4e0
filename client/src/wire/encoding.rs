//! The two forms in which a body can be sent: JSON for everybody, and postcard for Rust, which is smaller, has payloads
//! as the bytes that they are, and costs less. Postcard has no names in it, so its version is part of the content
//! type: it grows with any change of a type of the wire, and a node refuses one that it does not speak.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// A form of bodies and answers. Problems are JSON in either.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Encoding {
    /// Binary.
    #[default]
    Postcard,
    /// Readable.
    Json,
}

impl Encoding {
    /// The encoding as HTTP names it.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Postcard => "application/vnd.holdfast.postcard;version=1",
            Self::Json => "application/json",
        }
    }

    /// The encoding of this content type, if it is one of them. The parameters of JSON mean nothing; postcard's
    /// version has to be there.
    pub fn of(content_type: &str) -> Option<Self> {
        let (media_type, parameters) = content_type.split_once(';').unwrap_or((content_type, ""));
        if media_type.trim().eq_ignore_ascii_case(Self::Json.content_type()) {
            return Some(Self::Json);
        }
        let named = format!("{};{}", media_type.trim(), parameters.trim());
        named.eq_ignore_ascii_case(Self::Postcard.content_type()).then_some(Self::Postcard)
    }

    /// A value in this encoding.
    ///
    /// # Errors
    /// What the value has that the encoding cannot say.
    pub fn write<T: Serialize + ?Sized>(self, value: &T) -> Result<Vec<u8>, String> {
        match self {
            Self::Postcard => postcard::to_stdvec(value).map_err(|error| error.to_string()),
            Self::Json => serde_json::to_vec(value).map_err(|error| error.to_string()),
        }
    }

    /// The value that these bytes are.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn read<T: DeserializeOwned>(self, bytes: &[u8]) -> Result<T, String> {
        match self {
            Self::Json => serde_json::from_slice(bytes).map_err(|error| error.to_string()),
            Self::Postcard => match postcard::take_from_bytes(bytes) {
                Ok((value, [])) => Ok(value),
                Ok((_, rest)) => Err(format!("{} bytes too many", rest.len())),
                Err(error) => Err(error.to_string()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_content_type_names_its_encoding() {
        for (content_type, encoding) in [
            ("application/json", Some(Encoding::Json)),
            ("Application/JSON; charset=utf-8", Some(Encoding::Json)),
            ("application/vnd.holdfast.postcard; version=1", Some(Encoding::Postcard)),
            (Encoding::Postcard.content_type(), Some(Encoding::Postcard)),
            ("application/vnd.holdfast.postcard", None),
            ("application/vnd.holdfast.postcard;version=2", None),
            ("application/jsonl", None),
            ("", None),
        ] {
            assert_eq!(Encoding::of(content_type), encoding, "{content_type}");
        }
    }

    #[test]
    fn what_is_too_much_or_too_little_is_no_value() {
        for encoding in [Encoding::Postcard, Encoding::Json] {
            let bytes = encoding.write(&(7u64, "a")).unwrap_or_default();
            assert_eq!(encoding.read::<(u64, String)>(&bytes), Ok((7, "a".to_owned())));
            assert!(encoding.read::<(u64, String)>(&[bytes.as_slice(), b"x"].concat()).is_err());
            assert!(encoding.read::<(u64, String)>(&bytes[..bytes.len() - 1]).is_err());
        }
    }
}
