//! The code of the README and of the guide, compiled and run as documentation tests.

macro_rules! pages {
    ($($page:ident: $path:literal,)+) => {
        $(
            #[cfg(doctest)]
            #[doc = include_str!($path)]
            pub mod $page {}
        )+
    };
}

pages! {
    readme: "../README.md",
    start: "../docs/src/guide/start.md",
    run: "../docs/src/guide/run.md",
    configuration: "../docs/src/guide/configuration.md",
    selection: "../docs/src/guide/selection.md",
    moe_engine: "../docs/src/guide/moe-engine.md",
    collective: "../docs/src/guide/collective.md",
    decorators: "../docs/src/guide/decorators.md",
    failure: "../docs/src/guide/failure.md",
    collectives: "../docs/src/manual/collectives.md",
}
