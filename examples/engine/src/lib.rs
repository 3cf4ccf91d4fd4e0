//! A small workflow engine on Holdfast.
