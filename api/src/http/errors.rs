//! The page of each error code, as a problem's `type` points to it. `docs/errors` holds them; the tests here keep
//! them equal to the code.

use axum::http::header::{CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::response::IntoResponse;

use super::error::{ApiError, Refusal};
use super::extract::Segment;

/// Code and page, in order of code; `README` is the index.
const PAGES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/error_pages.rs"));

/// All error codes, with their statuses.
#[utoipa::path(
    get,
    path = "/errors",
    tag = "node",
    responses((status = 200, content_type = "text/plain", body = String))
)]
pub(crate) async fn error_index() -> Result<impl IntoResponse, ApiError> {
    page("README")
}

/// What an error code means and what to do about it.
#[utoipa::path(
    get,
    path = "/errors/{code}",
    tag = "node",
    params(("code" = String, Path)),
    responses(
        (status = 200, content_type = "text/plain", body = String),
        (status = 400, description = "invalid_argument"),
        (status = 404, description = "not_found"),
    )
)]
pub(crate) async fn error_page(Segment(code): Segment<String>) -> Result<impl IntoResponse, ApiError> {
    page(&code)
}

fn page(code: &str) -> Result<impl IntoResponse + use<>, ApiError> {
    let position = PAGES.binary_search_by_key(&code, |(code, _)| code);
    let (_, page) = position
        .ok()
        .and_then(|position| PAGES.get(position))
        .ok_or_else(|| ApiError::new(Refusal::NotFound, "there is no such error code; /errors lists them all"))?;
    Ok(([(CONTENT_TYPE, "text/plain; charset=utf-8"), (X_CONTENT_TYPE_OPTIONS, "nosniff")], *page))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use std::collections::BTreeSet;

    use holdfast_client::Problem;
    use holdfast_machine::{ArchiveError, Reject};
    use serde::de::value::Error;
    use serde::de::{Deserialize, Deserializer, Visitor};

    use super::*;
    use crate::StoreError;

    /// Takes note of the names of an enum's variants, and of nothing else.
    struct Variants<'a>(&'a mut &'static [&'static str]);

    impl<'de> Deserializer<'de> for Variants<'_> {
        type Error = Error;

        fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
            Err(serde::de::Error::custom("only an enum has variants"))
        }

        fn deserialize_enum<V: Visitor<'de>>(
            self,
            _: &'static str,
            variants: &'static [&'static str],
            _: V,
        ) -> Result<V::Value, Error> {
            *self.0 = variants;
            Err(serde::de::Error::custom("the names are all that is wanted"))
        }

        serde::forward_to_deserialize_any! {
            bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit unit_struct
            newtype_struct seq tuple tuple_struct map struct identifier ignored_any
        }
    }

    /// `SequenceConflict` has the code `sequence_conflict`.
    fn snake_case(variant: &str) -> String {
        let mut code = String::new();
        for letter in variant.chars() {
            if letter.is_uppercase() && !code.is_empty() {
                code.push('_');
            }
            code.extend(letter.to_lowercase());
        }
        code
    }

    /// What the store itself may answer besides refusals. Each variant but `Reject` is in the list.
    fn failures() -> Vec<StoreError> {
        let read = StoreError::Read(ArchiveError(String::new()));
        match read {
            StoreError::Reject(_)
            | StoreError::NoQuorum { .. }
            | StoreError::IndexNotReached { .. }
            | StoreError::Unknown
            | StoreError::Overloaded
            | StoreError::StorageFull
            | StoreError::Stopped
            | StoreError::Read(_)
            | StoreError::WrongReply { .. } => vec![
                StoreError::NoQuorum { waited_ms: 1 },
                StoreError::IndexNotReached { min_index: 9, applied: 5 },
                StoreError::Unknown,
                StoreError::Overloaded,
                StoreError::StorageFull,
                StoreError::Stopped,
                read,
                StoreError::WrongReply { command: "claim" },
            ],
        }
    }

    /// Every code that a node can answer.
    fn codes() -> BTreeSet<String> {
        let mut variants: &[&str] = &[];
        Reject::deserialize(Variants(&mut variants)).unwrap_err();
        let refusals = variants.iter().map(|variant| snake_case(variant));
        let failures = failures().into_iter().map(|error| error.code().to_owned());
        refusals.chain(failures).chain(Refusal::ALL.map(|refusal| refusal.code().to_owned())).collect()
    }

    /// The status of a code and whether the same call may succeed later, as the code base has it.
    fn status_of(code: &str, example: &Problem) -> (u16, bool) {
        if let Some(refusal) = Refusal::ALL.into_iter().find(|refusal| refusal.code() == code) {
            return (refusal.status(), refusal == Refusal::NotReady || refusal == Refusal::BodyUnread);
        }
        let error = failures().into_iter().find(|error| error.code() == code);
        let error = error.unwrap_or_else(|| example.reject().expect("its example is no refusal").into());
        (error.status(), error.is_retryable())
    }

    fn example(page: &str) -> &str {
        page.split("```json\n").nth(1).and_then(|rest| rest.split("\n```").next()).expect("no example")
    }

    #[test]
    fn there_is_a_page_for_every_code_and_no_other() {
        let pages: BTreeSet<String> =
            PAGES.iter().map(|(code, _)| (*code).to_owned()).filter(|code| code != "README").collect();
        let codes = codes();
        let missing: Vec<_> = codes.difference(&pages).collect();
        let spare: Vec<_> = pages.difference(&codes).collect();
        assert!(missing.is_empty(), "docs/errors/<code>.md is missing for {missing:?}");
        assert!(spare.is_empty(), "no error has these codes any more: {spare:?}");
    }

    #[test]
    fn a_page_says_what_the_code_does() {
        let index = PAGES.iter().find(|(code, _)| *code == "README").unwrap().1;
        for (code, page) in PAGES.iter().filter(|(code, _)| *code != "README") {
            let shown: Problem = serde_json::from_str(example(page)).unwrap_or_else(|e| panic!("{code}: {e}"));
            let (status, retryable) = status_of(code, &shown);
            let retryable = if retryable { "yes" } else { "no" };
            let head = format!("# {code}\n\n**Status** {status} · **retryable**: {retryable}\n");
            assert!(page.starts_with(&head), "docs/errors/{code}.md must begin with\n{head}");
            assert!(page.contains("\n## What to do\n"), "docs/errors/{code}.md does not say what to do");
            let line = format!("| [`{code}`]({code}.md) | {status} | {retryable} | ");
            assert!(index.contains(&line), "docs/errors/README.md needs a line that begins with\n{line}");
            let failure = failures().into_iter().find(|error| error.code() == *code);
            let made = match (failure, shown.reject()) {
                (Some(error), _) => Problem { detail: shown.detail.clone(), ..ApiError::from(error).problem() },
                (None, Some(reject)) => Problem::of_reject(status, &reject),
                (None, None) => Problem::new(status, code, shown.detail.clone()),
            };
            let made = serde_json::to_string_pretty(&made).unwrap();
            assert_eq!(example(page), made, "the example in docs/errors/{code}.md is not what a node answers");
            for member in shown.details.keys() {
                assert!(page.contains(&format!("| `{member}` |")), "docs/errors/{code}.md does not tell of {member}");
            }
        }
    }

    #[test]
    fn an_unknown_code_is_not_found() {
        assert!(page("sequence_conflict").is_ok());
        assert!(page("no_such_code").is_err());
    }
}
