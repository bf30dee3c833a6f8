//! Which writing systems a Unicode label mixes (UTS #39 §5.1, by blocks).

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Script {
    Latin,
    Greek,
    Cyrillic,
    Armenian,
    Hebrew,
    Arabic,
    Cherokee,
    Indic,
    Thai,
    Georgian,
    /// Han, Kana, Bopomofo and Hangul: written together, and with Latin letters, every day.
    EastAsian,
}

impl Script {
    fn name(self) -> &'static str {
        match self {
            Script::Latin => "Latin",
            Script::Greek => "Greek",
            Script::Cyrillic => "Cyrillic",
            Script::Armenian => "Armenian",
            Script::Hebrew => "Hebrew",
            Script::Arabic => "Arabic",
            Script::Cherokee => "Cherokee",
            Script::Indic => "Indic",
            Script::Thai => "Thai",
            Script::Georgian => "Georgian",
            Script::EastAsian => "East Asian",
        }
    }
}

/// The two scripts that a label mixes, if one does. `аpi` with a Cyrillic `а` is a name of its own; a person who
/// writes it into a policy meant another.
pub(super) fn mixed(name: &str) -> Option<(&'static str, &'static str)> {
    name.split(['.', '\u{3002}', '\u{ff0e}', '\u{ff61}']).find_map(|label| {
        let mut seen = label.chars().filter_map(script).filter(|&script| script != Script::EastAsian);
        let first = seen.next()?;
        let other = seen.find(|&script| script != first)?;
        Some((first.name(), other.name()))
    })
}

/// `None` for digits, marks and scripts without look-alikes.
fn script(c: char) -> Option<Script> {
    Some(match c {
        'a'..='z' | 'A'..='Z' | '\u{c0}'..='\u{d6}' | '\u{d8}'..='\u{f6}' | '\u{f8}'..='\u{2af}' => {
            Script::Latin
        }
        '\u{1e00}'..='\u{1eff}' | '\u{ff21}'..='\u{ff3a}' | '\u{ff41}'..='\u{ff5a}' => Script::Latin,
        '\u{370}'..='\u{3ff}' | '\u{1f00}'..='\u{1fff}' => Script::Greek,
        '\u{400}'..='\u{52f}'
        | '\u{1c80}'..='\u{1c8f}'
        | '\u{2de0}'..='\u{2dff}'
        | '\u{a640}'..='\u{a69f}' => Script::Cyrillic,
        '\u{531}'..='\u{58f}' => Script::Armenian,
        '\u{590}'..='\u{5ff}' => Script::Hebrew,
        '\u{600}'..='\u{6ff}' | '\u{750}'..='\u{77f}' | '\u{8a0}'..='\u{8ff}' => Script::Arabic,
        '\u{900}'..='\u{dff}' => Script::Indic,
        '\u{e00}'..='\u{eff}' => Script::Thai,
        '\u{10a0}'..='\u{10ff}' | '\u{2d00}'..='\u{2d2f}' => Script::Georgian,
        '\u{13a0}'..='\u{13ff}' | '\u{ab70}'..='\u{abbf}' => Script::Cherokee,
        '\u{1100}'..='\u{11ff}'
        | '\u{2e80}'..='\u{30ff}'
        | '\u{3100}'..='\u{312f}'
        | '\u{3400}'..='\u{9fff}'
        | '\u{ac00}'..='\u{d7ff}'
        | '\u{20000}'..='\u{3ffff}' => Script::EastAsian,
        _ => return None,
    })
}
