//! Reads the sources of a configuration and lays them over each other.

use std::fs;
use std::path::Path;

use confique::meta::{FieldKind, Meta};
use confique::{Config as _, Layer};
use serde::Deserialize;
use toml::{Table, Value};

use super::{Config, ConfigError};

type ConfigLayer = <Config as confique::Config>::Layer;

/// How much alike a known key has to be to be offered for an unknown one, from 0 to 1.
const ALIKE_MIN: f64 = 0.7;

/// Reads the configuration: `flags` (a table of keys) over the environment, over the file, over the defaults,
/// and checks what comes out.
///
/// # Errors
/// [`ConfigError`]: a sentence that names what is wrong and says what to do.
pub fn load(file: Option<&Path>, flags: Table) -> Result<Config, ConfigError> {
    let environment = ConfigLayer::from_env().map_err(|error| invalid("the environment", format!("{error:#}")))?;
    layered(flags, environment, file)
}

/// As [`load`], with the environment's values given.
pub(super) fn layered(flags: Table, environment: ConfigLayer, file: Option<&Path>) -> Result<Config, ConfigError> {
    refuse_unknown("the command line", &flags)?;
    let flags =
        ConfigLayer::deserialize(Value::Table(flags)).map_err(|error| invalid("the command line", error.message()))?;
    let file = match file {
        Some(path) => read(path)?,
        None => ConfigLayer::empty(),
    };
    let merged = flags.with_fallback(environment).with_fallback(file).with_fallback(ConfigLayer::default_values());
    let config = Config::from_layer(merged).map_err(|error| invalid("the configuration", format!("{error:#}")))?;
    config.check()?;
    Ok(config)
}

/// Reads one `key=value` of the command line, such as `detector.confirmations=5`, into `table`. A value that is
/// no TOML value is taken as text.
///
/// # Errors
/// When there is no `=`, or the key is no key.
pub fn parse_setting(setting: &str, table: &mut Table) -> Result<(), ConfigError> {
    let (key, value) =
        setting.split_once('=').ok_or_else(|| invalid("the command line", format!("{setting:?} is no `key=value`")))?;
    let value = match toml::from_str::<Table>(&format!("value = {value}")) {
        Ok(mut parsed) => parsed.remove("value").unwrap_or_else(|| Value::String(value.to_owned())),
        Err(_) => Value::String(value.to_owned()),
    };
    let mut path: Vec<&str> = key.trim().split('.').collect();
    let last = path.pop().unwrap_or_default().to_owned();
    let mut inner = table;
    for name in path {
        let next = inner.entry(name).or_insert_with(|| Value::Table(Table::new()));
        let Value::Table(next) = next else {
            return Err(invalid("the command line", format!("`{name}` in {setting:?} is no table")));
        };
        inner = next;
    }
    inner.insert(last, value);
    Ok(())
}

/// A file with every key, its meaning and its default.
pub fn example() -> String {
    confique::toml::template::<Config>(confique::toml::FormatOptions::default())
}

fn read(path: &Path) -> Result<ConfigLayer, ConfigError> {
    let text =
        fs::read_to_string(path).map_err(|source| ConfigError::Unreadable { path: path.to_path_buf(), source })?;
    let in_file = |error: toml::de::Error| {
        let line = error.span().map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1);
        let place = match line {
            Some(line) => format!("{}, line {line}", path.display()),
            None => path.display().to_string(),
        };
        invalid(&place, error.message())
    };
    let table: Table = toml::from_str(&text).map_err(in_file)?;
    refuse_unknown(&path.display().to_string(), &table)?;
    toml::from_str(&text).map_err(in_file)
}

fn refuse_unknown(place: &str, table: &Table) -> Result<(), ConfigError> {
    let Some(key) = unknown_key(&Config::META, table, "") else { return Ok(()) };
    let mut known = Vec::new();
    known_keys(&Config::META, "", &mut known);
    Err(ConfigError::UnknownKey { place: place.to_owned(), nearest: nearest(&key, &known), key })
}

fn unknown_key(meta: &Meta, table: &Table, prefix: &str) -> Option<String> {
    table.iter().find_map(|(name, value)| {
        let path = format!("{prefix}{name}");
        let Some(field) = meta.fields.iter().find(|field| field.name == name) else { return Some(path) };
        match (&field.kind, value) {
            (FieldKind::Nested { meta }, Value::Table(inner)) => unknown_key(meta, inner, &format!("{path}.")),
            _ => None,
        }
    })
}

fn known_keys(meta: &Meta, prefix: &str, known: &mut Vec<String>) {
    for field in meta.fields {
        let path = format!("{prefix}{}", field.name);
        match &field.kind {
            FieldKind::Nested { meta } => known_keys(meta, &format!("{path}."), known),
            FieldKind::Leaf { .. } => known.push(path),
        }
    }
}

/// The known key that looks most like `key`; one in another table counts if its own name does.
fn nearest(key: &str, known: &[String]) -> Option<String> {
    let name = |key: &str| key.rsplit('.').next().unwrap_or_default().to_owned();
    let alike =
        |other: &String| strsim::jaro_winkler(key, other).max(strsim::jaro_winkler(&name(key), &name(other)) - 0.01);
    let best = known.iter().max_by(|a, b| alike(a).total_cmp(&alike(b)))?;
    (alike(best) >= ALIKE_MIN).then(|| best.clone())
}

fn invalid(place: &str, problem: impl Into<String>) -> ConfigError {
    let problem: String = problem.into();
    let problem = problem.split('\n').map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(", ");
    ConfigError::Invalid { place: place.to_owned(), problem }
}
