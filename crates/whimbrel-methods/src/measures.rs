//! Figures that several methods report.

use crate::settings::SMALL;
use whimbrel_core::Measure;
use whimbrel_core::declare::{Better, OverClients, Role, Unit};

/// Passes over the pooled rows.
pub fn epoch() -> Measure {
    Measure::new("epoch", "Epochs", "epoch", "Passes over all clients’ rows").role(Role::Axis)
}

/// The squared norm of the mean field.
pub fn field() -> Measure {
    let field = Measure::new("field_norm2", "‖h‖²", "‖h‖²", "Squared norm of the mean field");
    field.log().better(Better::Down).result(3)
}

/// The largest relative norm of the mean field of a converged fit.
pub const FIELD_MAX: f64 = 1e-4;

/// The norm of the mean field relative to that of the mean statistic; decides on convergence.
pub fn field_relative(remedy: String) -> Measure {
    let caption = "Norm of the mean field over that of the mean statistic";
    let field = Measure::new("field_relative", "‖h‖ / ‖s‖", "relative field", caption);
    field.log().better(Better::Down).without_curve().summary().goal(FIELD_MAX, remedy)
}

/// The norm of the last update relative to the largest of the run; decides on convergence where
/// nothing better is known.
pub fn update_relative(remedy: &'static str) -> Measure {
    channels().swap_remove(1).summary().goal(SMALL, remedy)
}

/// Figures of the channels: the server's direction, memories and local models.
pub fn channels() -> Vec<Measure> {
    let all = [
        Measure::new(
            "update_norm2",
            "‖H‖²",
            "update²",
            "Squared norm of the server’s update direction",
        ),
        Measure::new(
            "update_relative",
            "Relative update",
            "relative update",
            "Norm of the server’s update direction over the largest of the run",
        )
        .without_curve(),
        Measure::new(
            "memory_gap2",
            "Uplink memory gap",
            "up memory gap",
            "Squared distance from a client’s memory to its limit",
        )
        .clients(OverClients::Mean),
        Measure::new(
            "local_variance",
            "Variance of local models",
            "local variance",
            "Squared distance from a client’s model to the server’s",
        )
        .clients(OverClients::Mean),
        Measure::new(
            "down_memory_gap2",
            "Downlink memory gap",
            "down memory gap",
            "Squared distance from the downlink’s memory to the server’s model",
        )
        .clients(OverClients::Mean),
    ];
    all.map(Measure::log).into()
}

/// The size of a ghost downlink's compressed messages.
pub fn ghost() -> Measure {
    let ghost = Measure::new(
        "bits_down_ghost",
        "Hypothetical bits down",
        "hypothetical down",
        "Size of the ghost’s compressed messages; the bits sent down are larger",
    );
    Measure { headline: true, ..ghost.log().unit(Unit::Bits) }
}

/// Parts of messages that clients withheld.
pub fn withheld() -> Measure {
    let caption = "Components and gradients that fewer rows than min_group determined, so far";
    let withheld = Measure::new("withheld", "Withheld parts", "withheld", caption);
    withheld.without_curve().unit(Unit::Count).better(Better::Down).summary()
}

/// Values brought back into the domain of the M-step.
pub fn repairs() -> Measure {
    let repairs = Measure::new(
        "repairs",
        "Repairs",
        "repairs",
        "Parameters brought back into the domain of the M-step",
    );
    repairs.unit(Unit::Count).better(Better::Down).summary()
}

/// Figures of methods without a server.
pub fn neighbours() -> [Measure; 2] {
    let disagreement = Measure::new(
        "disagreement",
        "Disagreement",
        "disagreement",
        "Squared distance from a client’s vector to the mean of all",
    );
    let gap = Measure::new(
        "spectral_gap",
        "Spectral gap",
        "spectral gap",
        "One minus the second largest absolute eigenvalue of the mixing matrix",
    );
    [
        disagreement.log().better(Better::Down).clients(OverClients::Mean).result(3).summary(),
        gap.summary(),
    ]
}
