import com.google.protobuf.DescriptorProtos.FileDescriptorProto;
import com.google.protobuf.DescriptorProtos.FileDescriptorSet;
import io.streamnative.lightproto.generator.DescriptorConverter;
import io.streamnative.lightproto.generator.LightProtoGenerator;
import io.streamnative.lightproto.generator.ProtoFileDescriptor;
import java.io.File;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** Generates the protocol classes of a checkout. Arguments: descriptor set, output folder. */
public final class GenerateProtocol {
    private GenerateProtocol() {
    }

    public static void main(String[] arguments) throws Exception {
        FileDescriptorSet set = FileDescriptorSet.parseFrom(Files.readAllBytes(Path.of(arguments[0])));
        Map<String, String> types = DescriptorConverter.buildTypeRegistry(set.getFileList());
        List<ProtoFileDescriptor> files = new ArrayList<>();
        for (FileDescriptorProto file : set.getFileList()) {
            files.add(DescriptorConverter.convert(file, types));
        }
        LightProtoGenerator.generate(files, new File(arguments[1]), "", false, set.getFileList().stream().map(FileDescriptorProto::getName).toList());
    }
}
