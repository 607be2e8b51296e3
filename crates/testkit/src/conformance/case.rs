//! Cases and groups: what the suite consists of.

use super::finding::Proof;
use super::need::Need;
use super::stage::Stage;

/// One promise and how it is proved.
#[derive(Debug)]
pub struct Case {
    name: &'static str,
    proves: &'static str,
    needs: &'static [Need],
    body: fn(&Stage) -> Proof,
}

impl Case {
    pub(super) const fn new(
        name: &'static str,
        proves: &'static str,
        needs: &'static [Need],
        body: fn(&Stage) -> Proof,
    ) -> Self {
        Self { name, proves, needs, body }
    }

    /// Its name, unique in the suite.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// What it proves, in a sentence.
    pub fn proves(&self) -> &'static str {
        self.proves
    }

    /// What must be there for it to be run.
    pub fn needs(&self) -> &'static [Need] {
        self.needs
    }

    /// The group that it belongs to.
    pub fn group(&self) -> &'static Group {
        let group = super::GROUPS.iter().find(|group| group.cases.iter().any(|case| case.name == self.name));
        group.expect("every case is made by the table of a group")
    }

    pub(super) fn body(&self) -> fn(&Stage) -> Proof {
        self.body
    }
}

/// Cases that are about the same thing.
#[derive(Debug)]
pub struct Group {
    /// Its name.
    pub name: &'static str,
    /// What its cases are about.
    pub about: &'static str,
    /// The cases.
    pub cases: &'static [Case],
}
