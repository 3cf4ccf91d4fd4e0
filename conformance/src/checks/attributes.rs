//! Search attributes: typed facts by which workflows are found.

use std::collections::BTreeSet;

use anyhow::Result;
use holdfast_client::{ReadMode, Write};
use holdfast_machine::{
    AttributeFilter, AttributeName, AttributeRange, AttributeValue, AttributesUpdate, EventKind, Millis, NewEvent,
    WorkflowFilter,
};

use super::visibility::{equals, filter, found, open, set, update};
use crate::checks::checks;
use crate::trial::{Trial, note, over_limit, refused_as, same};

checks! {
    "search attributes":
    attributes = "a workflow is found by a search attribute of each type, and by each text of several",
    ranges = "a range of an attribute takes numbers or times from its start on, up to before its end",
    updates = "a change of attributes sets those that it names, removes those that are null, and leaves the others",
    misplaced = "attributes on other events, and too many of them, are refused whole",
}

async fn attributes(trial: &Trial) -> Result<()> {
    use AttributeValue::*;
    let texts = |all: &[&str]| Texts(all.iter().map(|text| (*text).to_owned()).collect());
    let one = open(
        trial,
        "one",
        &[
            ("text", Text("é/🎉".into())),
            ("integer", Integer(i64::MIN)),
            ("bool", Bool(true)),
            ("time", Time(Millis(7))),
            ("texts", texts(&["vip", "eu"])),
        ],
    )
    .await?;
    let other = open(
        trial,
        "other",
        &[("text", Text("é".into())), ("integer", Integer(7)), ("bool", Bool(false)), ("texts", texts(&["eu"]))],
    )
    .await?;
    let by = async |conditions: Vec<AttributeFilter>| {
        found(trial, &WorkflowFilter { attributes: conditions, ..filter(trial)? }).await
    };
    for (name, value, expected) in [
        ("text", Text("é/🎉".into()), set([&one])),
        ("text", Text("é".into()), set([&other])),
        ("text", Text("é/".into()), set([])),
        ("integer", Integer(i64::MIN), set([&one])),
        ("integer", Integer(7), set([&other])),
        ("bool", Bool(true), set([&one])),
        ("time", Time(Millis(7)), set([&one])),
        ("time", Integer(7), set([])),
        ("integer", Time(Millis(7)), set([])),
        ("text", Bool(true), set([])),
        ("texts", Text("eu".into()), set([&one, &other])),
        ("texts", Text("vip".into()), set([&one])),
        ("nothing", Text("eu".into()), set([])),
    ] {
        let what = format!("{name} = {value:?}");
        same(&what, by(vec![equals(name, value)?]).await?, expected)?;
    }
    let both = vec![equals("texts", Text("eu".into()))?, equals("bool", Bool(false))?];
    same("two conditions", by(both).await?, set([&other]))
}

async fn ranges(trial: &Trial) -> Result<()> {
    let mut workflows = Vec::new();
    for (number, value) in [i64::MIN, -5, 0, 5, i64::MAX].into_iter().enumerate() {
        let time = AttributeValue::Time(Millis(number as u64));
        let attributes = [("n", AttributeValue::Integer(value)), ("t", time)];
        workflows.push(open(trial, &format!("w{number}"), &attributes).await?);
    }
    let by = async |name: &str, range: AttributeRange| {
        let condition = AttributeFilter { name: AttributeName::new(name)?, equals: None, range: Some(range) };
        found(trial, &WorkflowFilter { attributes: vec![condition], ..filter(trial)? }).await
    };
    let integer = |from, to| AttributeRange::Integer { from, to };
    let time = |from: Option<u64>, to: Option<u64>| AttributeRange::Time { from: from.map(Millis), to: to.map(Millis) };
    same("all numbers", by("n", integer(None, None)).await?, set(&workflows))?;
    same("from -5 to 5", by("n", integer(Some(-5), Some(5))).await?, set(&workflows[1..3]))?;
    same("below 0", by("n", integer(None, Some(0))).await?, set(&workflows[..2]))?;
    same("from 5", by("n", integer(Some(5), None)).await?, set(&workflows[3..]))?;
    same("times from 1 to 3", by("t", time(Some(1), Some(3))).await?, set(&workflows[1..3]))?;
    same("numbers as times", by("n", time(None, None)).await?, BTreeSet::new())
}

async fn updates(trial: &Trial) -> Result<()> {
    let workflow =
        open(trial, "updated", &[("a", AttributeValue::Integer(1)), ("b", AttributeValue::Integer(1))]).await?;
    let change = async |changes: &[(&str, Option<i64>)]| -> Result<()> {
        let one =
            |(name, value): &(&str, Option<i64>)| Ok((AttributeName::new(name)?, value.map(AttributeValue::Integer)));
        let search_attributes = Some(changes.iter().map(one).collect::<Result<AttributesUpdate>>()?);
        let event = NewEvent { search_attributes, ..NewEvent::of(EventKind::SearchAttributesUpdated) };
        let head = trial.head(&workflow).await?;
        trial.store.append(&workflow, head, vec![event], Write::default()).await?;
        Ok(())
    };
    let now = async || -> Result<Vec<(String, AttributeValue)>> {
        let view = trial.store.workflow(&workflow, ReadMode::Linearizable).await?.value;
        Ok(view.search_attributes.into_iter().map(|(name, value)| (name.to_string(), value)).collect())
    };
    let of = |pairs: &[(&str, i64)]| -> Vec<(String, AttributeValue)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), AttributeValue::Integer(*value))).collect()
    };
    change(&[("b", Some(2)), ("c", Some(3))]).await?;
    same("after setting two", now().await?, of(&[("a", 1), ("b", 2), ("c", 3)]))?;
    change(&[("a", None), ("nobody", None)]).await?;
    same("after removing one", now().await?, of(&[("b", 2), ("c", 3)]))?;
    let by = async |name: &str, value| {
        let attributes = vec![equals(name, AttributeValue::Integer(value))?];
        found(trial, &WorkflowFilter { attributes, ..filter(trial)? }).await
    };
    same("by the old value", by("b", 1).await?, BTreeSet::new())?;
    same("by the removed one", by("a", 1).await?, BTreeSet::new())?;
    same("by the new value", by("b", 2).await?, set([&workflow]))?;
    trial.then(&workflow, &[EventKind::WorkflowCompleted]).await?;
    change(&[("b", Some(9))]).await?;
    same("by the value that came after the end", by("b", 9).await?, set([&workflow]))
}

async fn misplaced(trial: &Trial) -> Result<()> {
    let workflow = open(trial, "misplaced", &[]).await?;
    let one = update(&[("a", AttributeValue::Bool(true))])?;
    let event = NewEvent { search_attributes: Some(one), ..note("with attributes") };
    let result = trial.store.append(&workflow, 1, vec![note("a"), event], Write::default()).await;
    refused_as("attributes on a note", result, &["invalid_argument"])?;
    let many = |count: usize| -> Result<Vec<NewEvent>> {
        let names: Vec<String> = (0..count).map(|number| format!("a{number}")).collect();
        let all: Vec<_> = names.iter().map(|name| (name.as_str(), AttributeValue::Bool(true))).collect();
        let event = NewEvent::of(EventKind::SearchAttributesUpdated);
        Ok(vec![NewEvent { search_attributes: Some(update(&all)?), ..event }])
    };
    let result = trial.store.append(&workflow, 1, many(65)?, Write::default()).await;
    over_limit("too many attributes", result, 64, 65)?;
    same("the head", trial.head(&workflow).await?, 1)?;
    trial.store.append(&workflow, 1, many(64)?, Write::default()).await?;
    Ok(())
}
