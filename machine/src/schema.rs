//! How the types that write themselves in JSON look in an OpenAPI document. All others derive it.

use utoipa::openapi::schema::{AdditionalProperties, ObjectBuilder, OneOfBuilder, SchemaType, Type};
use utoipa::openapi::{Ref, RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::attributes::AttributeValue;
use crate::history::EventKind;
use crate::id::{ClaimToken, DispatchKey, EventId};
use crate::limits::ID_BYTES_MAX;
use crate::payload::Payload;

fn text(description: &str, length_max: usize, pattern: &str) -> ObjectBuilder {
    ObjectBuilder::new()
        .schema_type(Type::String)
        .description(Some(description))
        .min_length(Some(1))
        .max_length(Some(length_max))
        .pattern(Some(pattern))
}

impl PartialSchema for DispatchKey {
    fn schema() -> RefOr<Schema> {
        let description = "The key of one outbox row: `{workflow_id}:{ordinal}`.";
        // A colon and the digits of a u64.
        let length_max = ID_BYTES_MAX + 21;
        let schema = text(description, length_max, r"^[^\x00-\x1f\x7f-\x9f]+:(0|[1-9][0-9]{0,19})$");
        schema.examples(["order-1:1"]).into()
    }
}

impl ToSchema for DispatchKey {}

impl PartialSchema for ClaimToken {
    fn schema() -> RefOr<Schema> {
        let description = "Proof of one claim, as the claim returned it.";
        text(description, 31, "^(0|[1-9][0-9]{0,19})-(0|[1-9][0-9]{0,9})$").examples(["10-1"]).into()
    }
}

impl ToSchema for ClaimToken {}

impl PartialSchema for EventId {
    fn schema() -> RefOr<Schema> {
        let description = "The number of a committed cluster event: log index, then position.";
        text(description, 31, "^[0-9]{1,20}-[0-9]{1,10}$").examples(["35-0"]).into()
    }
}

impl ToSchema for EventId {}

impl PartialSchema for EventKind {
    fn schema() -> RefOr<Schema> {
        let description = "What happened: a kind that the store knows (`WorkflowStarted`, `ActivityCompleted`, …) or any \
                           other name, which is kept as it is.";
        text(description, ID_BYTES_MAX, r"^[^\x00-\x1f\x7f-\x9f]+$").examples(["SignalReceived"]).into()
    }
}

impl ToSchema for EventKind {}

impl PartialSchema for Payload {
    fn schema() -> RefOr<Schema> {
        let form = |member: &str, schema: ObjectBuilder, fallback: &str| {
            let content_type = ObjectBuilder::new()
                .schema_type(SchemaType::from_iter([Type::String, Type::Null]))
                .max_length(Some(ID_BYTES_MAX))
                .description(Some(format!("`{fallback}` if left out")));
            ObjectBuilder::new()
                .schema_type(Type::Object)
                .property("content_type", content_type)
                .property(member, schema)
                .required(member)
                .additional_properties(Some(AdditionalProperties::<Schema>::FreeForm(false)))
        };
        let any = ObjectBuilder::new().schema_type(SchemaType::AnyValue).description(Some("Kept to the letter."));
        let plain = || ObjectBuilder::new().schema_type(Type::String);
        OneOfBuilder::new()
            .description(Some("Opaque bytes with a content type; null for none."))
            .item(ObjectBuilder::new().schema_type(Type::Null))
            .item(form("json", any, "application/json"))
            .item(form("text", plain(), "text/plain"))
            .item(form("base64", plain().content_encoding("base64"), "application/octet-stream"))
            .into()
    }
}

impl ToSchema for Payload {}

/// Stands for [`crate::AttributesUpdate`], whose name a derive does not see.
pub(crate) struct AttributesUpdate;

impl PartialSchema for AttributesUpdate {
    fn schema() -> RefOr<Schema> {
        let value = OneOfBuilder::new()
            .item(ObjectBuilder::new().schema_type(Type::Null))
            .item(Ref::from_schema_name(AttributeValue::name()));
        ObjectBuilder::new()
            .schema_type(Type::Object)
            .description(Some(
                "Search attributes by name: the named ones are set, or removed if null; the others stay.",
            ))
            .additional_properties(Some(Schema::from(value)))
            .into()
    }
}

impl ToSchema for AttributesUpdate {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        schemas.push((AttributeValue::name().into_owned(), AttributeValue::schema()));
        AttributeValue::schemas(schemas);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{Epoch, Namespace};

    fn shown<T: ToSchema>() -> serde_json::Value {
        serde_json::to_value(T::schema()).unwrap()
    }

    #[test]
    fn schemas_say_the_limits() {
        let namespace = shown::<Namespace>();
        assert_eq!(namespace["type"], "string");
        assert!(namespace["pattern"].as_str().unwrap().ends_with(&format!("{{1,{ID_BYTES_MAX}}}$")), "{namespace}");
        assert_eq!(shown::<Epoch>()["type"], "integer");
        assert_eq!(
            shown::<ClaimToken>()["maxLength"],
            ClaimToken { index: u64::MAX, number: u32::MAX }.to_string().len()
        );
    }
}
