//! Looks up themes by name: first the user's own, in `themes/NAME.toml` beside the configuration file, then built-in
//! ones.

use std::path::{Path, PathBuf};

use gputop_model::nearest_name::instead_of;
use gputop_model::text::quoted;

use super::definition::AUTO;
use super::file::{Origin, SettingError, read_text};
use crate::tui::colours::Colours;
use crate::tui::palette::{PALETTES, Palette};

#[derive(Debug, Default)]
pub struct Themes {
    folder: Option<PathBuf>,
}

impl Themes {
    pub fn beside(config: &Path) -> Self {
        Self { folder: config.parent().map(|folder| folder.join("themes")) }
    }

    /// Returns the names of the user's own themes.
    pub fn own(&self) -> Vec<String> {
        let folder = self.folder.as_deref().and_then(|f| f.read_dir().ok());
        let files = folder.into_iter().flatten().flatten();
        let mut names: Vec<String> = files
            .filter_map(|file| Some(file.file_name().to_str()?.strip_suffix(".toml")?.to_owned()))
            .collect();
        names.sort_unstable();
        names
    }

    pub fn find(&self, name: &str, origin: &Origin) -> Result<Colours, SettingError> {
        let own = self.own();
        if own.iter().any(|known| known == name) {
            return self.read(name);
        }
        let names = || {
            PALETTES.iter().map(|def| def.name).chain([AUTO]).chain(own.iter().map(String::as_str))
        };
        let unknown = || {
            let instead = instead_of(name, names());
            origin.error(format!("unknown theme `{}`; {instead}", quoted(name)))
        };
        let palette = Palette::named(name).ok_or_else(unknown)?;
        Ok(Colours::built_in(palette))
    }

    /// Reads one of the user's own themes.
    pub fn read(&self, name: &str) -> Result<Colours, SettingError> {
        let path = self.folder.as_deref().unwrap_or(Path::new("")).join(format!("{name}.toml"));
        let text = read_text("theme", &path)?;
        Colours::parse(&text).map_err(|what| SettingError::Theme { path, what })
    }
}
