//! The network architectures.

use crate::layer::{Layer, Shape};
use crate::layers::{
    Activation, AveragePool, BatchNorm, Chain, Conv, Dense, Depthwise, Dropout, Embedding,
    LastStep, Lstm, MaxPool, Residual,
};
use crate::network::{Input, Network};
use crate::product::Window;

type Layers = Vec<Box<dyn Layer>>;

/// A window of this side at every pixel, without a border.
fn inside(size: usize) -> Window {
    Window { size, stride: 1, padding: 0 }
}

/// A window of three by three with a border of zeros.
fn three(stride: usize) -> Window {
    Window { size: 3, stride, padding: 1 }
}

fn image([channels, rows, columns]: [usize; 3]) -> Shape {
    Shape { channels, rows, columns }
}

impl Network {
    /// Dense layers of these widths, rectified.
    pub fn mlp(features: usize, hidden: &[usize], classes: usize) -> Self {
        let mut layers: Layers = Vec::new();
        let mut width = features;
        for (i, next) in hidden.iter().enumerate() {
            layers.push(Box::new(Dense::inner(format!("hidden{}", i + 1), width, *next)));
            width = *next;
        }
        layers.push(Box::new(Dense::head("head", width, classes)));
        Self::new("mlp", Input::Numbers(features), layers)
    }

    /// Two convolutions of three by three with 32 and 64 channels, max pooling, dropout of a quarter,
    /// 128 dense, dropout of a half (Reddi et al., 2021, for EMNIST).
    pub fn cnn(shape: [usize; 3], classes: usize) -> Self {
        let input = image(shape);
        let first = Conv { bias: true, relu: true, ..conv("conv1", input, 32, inside(3)) };
        let second = Conv { bias: true, ..conv("conv2", first.output, 64, inside(3)) };
        let pool = MaxPool { input: second.output, relu: true };
        let pooled = pool.output();
        let layers: Layers = vec![
            Box::new(first),
            Box::new(second),
            Box::new(pool),
            Box::new(Dropout { shape: pooled, probability: 0.25 }),
            Box::new(Dense::inner("dense", pooled.len(), 128)),
            Box::new(Dropout { shape: Shape::flat(128), probability: 0.5 }),
            Box::new(Dense::head("head", 128, classes)),
        ];
        Self::new("cnn", Input::Image(input), layers)
    }

    /// LeNet-5 (LeCun et al., 1998) with rectified outputs, max pooling and a dense last layer; images
    /// of 28 x 28 get a border of two pixels.
    pub fn lenet(shape: [usize; 3], classes: usize) -> Self {
        let input = image(shape);
        let padding = if input.rows < 32 { 2 } else { 0 };
        let window = Window { size: 5, stride: 1, padding };
        let first = Conv { bias: true, ..conv("conv1", input, 6, window) };
        let pool1 = MaxPool { input: first.output, relu: true };
        let second = Conv { bias: true, ..conv("conv2", pool1.output(), 16, inside(5)) };
        let pool2 = MaxPool { input: second.output, relu: true };
        let flat = pool2.output().len();
        let layers: Layers = vec![
            Box::new(first),
            Box::new(pool1),
            Box::new(second),
            Box::new(pool2),
            Box::new(Dense::inner("dense1", flat, 120)),
            Box::new(Dense::inner("dense2", 120, 84)),
            Box::new(Dense::head("head", 84, classes)),
        ];
        Self::new("lenet", Input::Image(input), layers)
    }

    /// MobileNet-v2 (Sandler et al., 2018) with its published strides: images of 32 x 32 end in one
    /// pixel. Dropout of a fifth before the last layer.
    pub fn mobilenet_v2(shape: [usize; 3], classes: usize) -> Self {
        const BLOCKS: [[usize; 4]; 7] = [
            // expansion, channels, repetitions, first stride
            [1, 16, 1, 1],
            [6, 24, 2, 2],
            [6, 32, 3, 2],
            [6, 64, 4, 2],
            [6, 96, 3, 1],
            [6, 160, 3, 2],
            [6, 320, 1, 1],
        ];
        let input = image(shape);
        let mut layers: Layers = Vec::new();
        let relu6 = Activation::Relu6;
        let mut at = normed(&mut layers, conv("stem", input, 32, three(2)), relu6);
        let mut number = 0;
        for [expansion, channels, repetitions, first_stride] in BLOCKS {
            for repetition in 0..repetitions {
                number += 1;
                let stride = if repetition == 0 { first_stride } else { 1 };
                let (body, to) = inverted(number, at, expansion, channels, stride);
                if stride == 1 && at.channels == channels {
                    let (body, inputs) = (Chain::new(body), at.len());
                    layers.push(Box::new(Residual { body, shortcut: None, inputs, relu: false }));
                } else {
                    layers.extend(body);
                }
                at = to;
            }
        }
        at = normed(&mut layers, conv("last", at, 1280, Window::POINT), relu6);
        layers.push(Box::new(AveragePool { input: at }));
        layers.push(Box::new(Dropout { shape: Shape::flat(1280), probability: 0.2 }));
        layers
            .push(Box::new(Dense { deviation: Some(0.01), ..Dense::head("head", 1280, classes) }));
        Self::new("mobilenet-v2", Input::Image(input), layers)
    }

    /// ResNet-18 (He et al., 2016) for small images: the first convolution has three by three pixels and
    /// stride 1, without pooling after it.
    pub fn resnet_18(shape: [usize; 3], classes: usize) -> Self {
        let input = image(shape);
        let mut layers: Layers = Vec::new();
        let mut at = normed(&mut layers, conv("stem", input, 64, three(1)), Activation::Relu);
        for (stage, channels) in [64, 128, 256, 512].into_iter().enumerate() {
            for block in 0..2 {
                let stride = if stage > 0 && block == 0 { 2 } else { 1 };
                let name = |part: &str| format!("stage{}.block{}.{part}", stage + 1, block + 1);
                let mut body: Layers = Vec::new();
                let first = Conv::new(name("conv1"), at, channels, three(stride));
                let inner = normed(&mut body, first, Activation::Relu);
                let second = Conv::new(name("conv2"), inner, channels, three(1));
                let to = normed(&mut body, second, Activation::None);
                let shortcut = (at != to).then(|| {
                    let mut layers: Layers = Vec::new();
                    let window = Window { size: 1, stride, padding: 0 };
                    let point = Conv::new(name("shortcut"), at, channels, window);
                    normed(&mut layers, point, Activation::None);
                    Chain::new(layers)
                });
                let (body, inputs) = (Chain::new(body), at.len());
                layers.push(Box::new(Residual { body, shortcut, inputs, relu: true }));
                at = to;
            }
        }
        layers.push(Box::new(AveragePool { input: at }));
        layers.push(Box::new(Dense::head("head", at.channels, classes)));
        Self::new("resnet-18", Input::Image(input), layers)
    }

    /// The next symbol of a sequence: an embedding, two layers of LSTM, a dense layer of the last step's
    /// outputs.
    pub fn lstm(
        steps: usize,
        symbols: usize,
        embedding: usize,
        hidden: usize,
        classes: usize,
    ) -> Self {
        let layers: Layers = vec![
            Box::new(Embedding { name: "embedding", symbols, width: embedding, steps }),
            Box::new(Lstm { name: "lstm1", inputs: embedding, hidden, steps }),
            Box::new(Lstm { name: "lstm2", inputs: hidden, hidden, steps }),
            Box::new(LastStep { channels: hidden, steps }),
            Box::new(Dense::head("head", hidden, classes)),
        ];
        Self::new("lstm", Input::Symbols { steps, below: symbols }, layers)
    }
}

fn conv(name: &str, input: Shape, channels: usize, window: Window) -> Conv {
    Conv::new(name.to_owned(), input, channels, window)
}

/// A convolution and a batch norm; returns the shape of its outputs.
fn normed(layers: &mut Layers, conv: Conv, activation: Activation) -> Shape {
    let (shape, name) = (conv.output, format!("{}.norm", conv.name));
    layers.push(Box::new(conv));
    layers.push(Box::new(BatchNorm { name, shape, activation }));
    shape
}

/// MobileNet-v2's block: expand, filter each channel, project.
fn inverted(
    number: usize,
    at: Shape,
    expansion: usize,
    channels: usize,
    stride: usize,
) -> (Layers, Shape) {
    let name = |part: &str| format!("block{number}.{part}");
    let mut layers: Layers = Vec::new();
    let mut wide = at;
    if expansion > 1 {
        let expand = Conv::new(name("expand"), at, expansion * at.channels, Window::POINT);
        wide = normed(&mut layers, expand, Activation::Relu6);
    }
    let depthwise = Depthwise::new(name("depthwise"), wide, stride);
    let filtered = depthwise.output();
    layers.push(Box::new(depthwise));
    layers.push(Box::new(BatchNorm {
        name: name("depthwise.norm"),
        shape: filtered,
        activation: Activation::Relu6,
    }));
    let project = Conv::new(name("project"), filtered, channels, Window::POINT);
    let to = normed(&mut layers, project, Activation::None);
    (layers, to)
}
