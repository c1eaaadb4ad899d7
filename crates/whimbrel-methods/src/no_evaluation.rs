//! Methods that ask clients for nothing in evaluations.

/// The items of `Evaluate` with an empty question and an empty answer.
macro_rules! asks_nothing {
    () => {
        type Ask = ();
        type Answer = ();
        fn ask(&self, _: &Self::Server) -> whimbrel_core::Result<()> {
            Ok(())
        }
        fn answer(&self, _: &Self::Client, (): &(), _: &Self::Data) -> whimbrel_core::Result<()> {
            Ok(())
        }
    };
}

/// Implements an empty `Evaluate`; type parameters come first, in brackets.
macro_rules! no_evaluation {
    ([$($parameters:tt)*] $method:ty) => {
        impl<$($parameters)*> whimbrel_core::method::Evaluate for $method {
            $crate::no_evaluation::asks_nothing!();
            fn conclude(
                &self,
                _: &Self::Server,
                _: &mut dyn Iterator<Item = (whimbrel_core::ClientId, ())>,
                _: whimbrel_core::method::ClientGroup,
            ) -> whimbrel_core::Result<Vec<whimbrel_core::method::Metric>> {
                Ok(Vec::new())
            }
        }
    };
}

pub(crate) use {asks_nothing, no_evaluation};
