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
}
